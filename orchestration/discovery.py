"""Finds the jobs: each folder in `assets/` is one, and its `asset.py` has the job's `STREAM = StreamSpec(...)`."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import assets
from engine.core.errors import WeirError
from orchestration.spec import StreamSpec

ASSETS = Path(assets.__path__[0])


class BrokenAsset(WeirError):
    """A folder in `assets/` has no usable spec. The message names the folder."""


def find_streams(folder: Path = ASSETS) -> tuple[StreamSpec, ...]:
    """Returns the specs of all jobs, by name. `folder` is an importable package of its own name. Raises BrokenAsset."""
    return tuple(_stream(path, f"{folder.name}.{path.name}") for path in sorted(folder.iterdir()) if _is_job(path))


def _is_job(path: Path) -> bool:
    """Folders without Python files are no jobs: a job that was deleted may leave its `__pycache__` behind."""
    return path.is_dir() and not path.name.startswith((".", "_")) and any(path.glob("*.py"))


def _stream(path: Path, package: str) -> StreamSpec:
    where = f"{path.parent.name}/{path.name}"
    if not (path / "asset.py").is_file():
        raise BrokenAsset(
            f"{where} has no asset.py, so Dagster does not know its job: write one with STREAM = StreamSpec(...), "
            "as in assets/pageviews/asset.py"
        )
    try:
        module = importlib.import_module(f"{package}.asset")
    except Exception as error:
        raise BrokenAsset(f"{where}/asset.py can't be loaded: {type(error).__name__}: {error}") from error
    spec = getattr(module, "STREAM", None)
    if not isinstance(spec, StreamSpec):
        found = "there is none" if spec is None else f"it is a {type(spec).__name__}"
        raise BrokenAsset(f"{where}/asset.py needs STREAM = StreamSpec(...); {found}")
    if spec.job != path.name:
        raise BrokenAsset(f"{where}/asset.py is for the job {spec.job!r}: a job has the name of its folder")
    if spec.drill is not None and spec.drill.job != spec.job:
        raise BrokenAsset(f"{where}/asset.py has the drill of another job, {spec.drill.job!r}")
    if not _exists(spec.path.partition(":")[0]):
        raise BrokenAsset(f"{where}/asset.py names the job {spec.path!r}, but there is no such module")
    return spec


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
