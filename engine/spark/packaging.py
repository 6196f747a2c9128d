"""Packs the engine and a job's own package into one archive that Spark ships to its workers (`--py-files`)."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path

import engine
from engine.core.errors import JobError

_SAME_DATE = (1980, 1, 1, 0, 0, 0)
"""All files have the same date, so that the same code makes the same bytes."""


def package(job: str, folder: Path) -> Path:
    """Writes `<folder>/weir-job.zip` for a job that can be imported.

    The archive holds Python files only, and no libraries that pip installs.
    """
    archive = folder / "weir-job.zip"
    temporary = archive.with_suffix(".tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as zipped:
        _write(zipped, _files(Path(engine.__file__).parent))
        write_own(zipped, job)
    temporary.replace(archive)
    return archive


def write_own(zipped: zipfile.ZipFile, job: str) -> None:
    """Writes the files of the job's own package, and not those of the engine."""
    _write(zipped, own_files(job))


def own_files(job: str) -> Iterator[tuple[str, Path]]:
    """Yields the files of the job's own package, each with its name in an archive. Raises a JobError if it has none."""
    return _own(job.partition(":")[0].partition(".")[0])


def has_data(job: str) -> bool:
    """Says whether the job's own package holds files that are no code: an archive lacks them."""
    found = importlib.util.find_spec(job.partition(":")[0].partition(".")[0])
    folders = found.submodule_search_locations if found is not None else None
    files = (file for folder in folders or () for file in Path(folder).rglob("*") if file.is_file())
    return any(file.suffix not in _CODE and not file.name.startswith(".") for file in files)


_CODE = (".py", ".pyc", ".pyi")


def _write(zipped: zipfile.ZipFile, files: Iterator[tuple[str, Path]]) -> None:
    for name, file in files:
        zipped.writestr(zipfile.ZipInfo(name, _SAME_DATE), file.read_bytes(), zipfile.ZIP_DEFLATED)


def _own(top: str) -> Iterator[tuple[str, Path]]:
    """Yields the files of the job's whole top-level package, since a job may import its neighbours."""
    if top == engine.__name__:
        return
    found = importlib.util.find_spec(top)
    if found is None or (found.origin is None and not found.submodule_search_locations):
        raise JobError(f"the package {top!r} can't be found as files, so it can't be shipped; pass --py-files yourself")
    if found.submodule_search_locations:
        for location in found.submodule_search_locations:
            yield from _files(Path(location))
    elif found.origin is not None:
        yield Path(found.origin).name, Path(found.origin)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob("*.py")):
        yield str(file.relative_to(folder.parent)), file
