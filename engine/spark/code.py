"""Keeps the code of each start, so that an upgrade can go back to it: the files that a job was imported from change."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path

from engine.core.errors import JobError
from engine.host.launch import MasterLaunch
from engine.host.run_folder import RunFolder
from engine.spark.packaging import write_own

KEPT = 3
"""The code of this many starts is kept, and that to which the last upgrade goes back."""


def keep_code(launch: MasterLaunch) -> None:
    """Writes the job's package, as it is now, to the run folder, unless the start has an archive already.

    A job whose package is no files, or whose store is full, runs without: only an upgrade would need the archive.
    """
    if not launch.code:
        with contextlib.suppress(JobError, OSError):
            _write(archive_of(launch), launch.path)
            _delete_old(launch)


def _write(archive: Path, job: str) -> None:
    archive.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = archive.with_suffix(".tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as zipped:
        write_own(zipped, job)
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


def kept_code(launch: MasterLaunch) -> str:
    """Returns the archive with the code of this start; empty: there is none, and it is imported from where it is."""
    archive = archive_of(launch)
    return launch.code or (str(archive) if archive.exists() else "")


def archive_of(launch: MasterLaunch) -> Path:
    return RunFolder(launch.store, launch.name).folder / "code" / f"{launch.id or 'start'}.zip"


def check_code(launch: MasterLaunch) -> None:
    """Raises a JobError if the archive of a start is gone: Python would import other code from the files, unsaid."""
    if launch.code and not Path(launch.code).is_file():
        raise JobError(
            f"the archive {launch.code} with the code of this start is gone: bring it back, or start the job from its "
            f"files with `weir submit {launch.path} --name {launch.name}`"
        )
