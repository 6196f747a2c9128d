"""Keeps the code of each start: the files that a job was imported from change while it runs.

Invariant: what is kept is what the first JobMaster of a start has loaded. Its later JobMasters and all slots run the
same code, and an upgrade goes back to it, whatever is in the files by then.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

from engine.core.errors import JobError
from engine.host.launch import LaunchOptions, MasterLaunch
from engine.host.run_folder import RunFolder
from engine.spark.packaging import has_data, own_files, write_own

Options = TypeVar("Options", bound=LaunchOptions)

KEPT = 3
"""The code of this many starts is kept, and that to which the last upgrade goes back."""


def keep_code(launch: MasterLaunch) -> None:
    """Writes the job's package, as it is now, to the run folder, unless the start has an archive already.

    A job whose package is no files, or whose store is full, runs without: its files must not change then.
    """
    if not launch.code and _content(archive_of(launch)) is None:
        with contextlib.suppress(JobError, OSError):
            _write(archive_of(launch), launch.path)
            _delete_old(launch)


def _write(archive: Path, job: str) -> None:
    archive.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = archive.with_suffix(".tmp")
    with temporary.open("wb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
            write_own(zipped, job)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(archive)


def _delete_old(launch: MasterLaunch) -> None:
    """Spares the archive to which the last upgrade goes back, however many new versions have failed since it was made.

    The old version may be running from it.
    """
    upgrade = RunFolder(launch.store, launch.name).read_upgrade()
    spared = upgrade.back.code if upgrade is not None else ""
    archives = [path for path in archive_of(launch).parent.glob("*.zip") if str(path) != spared]
    newest_first = sorted(archives, key=lambda path: path.stat().st_mtime, reverse=True)
    for old in newest_first[KEPT:]:
        old.unlink(missing_ok=True)


def as_kept(options: Options, archive: str) -> Options:
    """Returns the options of a start with its archive as the code, if the job's files have changed since it was made.

    A slot that is replaced would otherwise run other code than its JobMaster, which refuses it, again and again. A job
    with data beside its code runs from its files: the archive lacks the data.
    """
    kept = _content(Path(archive)) if archive and not options.code else None
    if kept is None:
        return options
    try:
        now = {name: file.read_bytes() for name, file in own_files(options.path)}
        as_it_was = now == kept or has_data(options.path)
    except (JobError, OSError):
        as_it_was = False  # the package is gone, or a file of it is
    return options if as_it_was else msgspec.structs.replace(options, code=archive)


def _content(archive: Path) -> dict[str, bytes] | None:
    """Returns the files of an archive; None if there is none, or a part of it is not what was written."""
    try:
        with zipfile.ZipFile(archive) as zipped:
            return {name: zipped.read(name) for name in zipped.namelist()}
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def kept_code(launch: MasterLaunch) -> str:
    """Returns the archive with the code of this start; empty: there is none, and it is imported from where it is."""
    archive = archive_of(launch)
    return launch.code or (str(archive) if archive.exists() else "")


def archive_of(launch: MasterLaunch) -> Path:
    return RunFolder(launch.store, launch.name).folder / "code" / f"{launch.id or 'start'}.zip"


def check_code(launch: MasterLaunch) -> None:
    """Raises a JobError if the archive of a start is gone or damaged, an OSError if the store does not let it be read.

    Without it, Python would import other code from the files, unsaid.
    """
    if not launch.code:
        return
    archive = Path(launch.code)
    try:
        archive.open("rb").close()
        how = "damaged" if _content(archive) is None else ""
    except FileNotFoundError:
        how = "gone"
    if how:
        raise JobError(
            f"the archive {archive} with the code of this start is {how}: bring it back, or start the job from its "
            f"files with `weir submit {launch.path} --name {launch.name}`"
        )
