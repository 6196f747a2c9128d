"""Says what the next start of a job goes on from: its newest epoch, or nothing. `weir` and Dagster show it."""

from __future__ import annotations

from engine.core.errors import CorruptSnapshot, ForeignSnapshot, StoreError
from engine.core.paths import JobPaths
from engine.host.run_folder import RunFolder
from engine.jobmaster.actions import Outcome
from engine.snapshot.epoch_log import EpochLog
from engine.store.opening import open_store

AFRESH = "begins afresh: no epoch yet"
GONE = "finds no record of its log, though it has run before: the store is empty, or another one is in its place"


def goes_on(store: str, job: str) -> str:
    """Returns words that follow the name of the job; empty if the store does not answer now.

    What can't be read is left to the JobMaster, which reads it again and says what to do.
    """
    try:
        log = EpochLog(open_store(store), JobPaths(job))
        last = log.last()
        newest = last.newest if last is not None else None
        if newest is None:
            return GONE if last is None and _has_begun(store, job) else AFRESH
        manifest = log.read_manifest(newest)
        over = manifest.drained and is_over(RunFolder(store, job))
    except CorruptSnapshot:
        return f"can't go on from epoch {newest.epoch}, whose files are not intact" if newest is not None else ""
    except ForeignSnapshot:
        assert newest is not None
        return f"can't go on from epoch {newest.epoch}, which another version of Weir or another job made"
    except (StoreError, OSError):
        return ""
    if over:
        return f"is refused: it was drained in epoch {newest.epoch}, so it is over for good"
    if manifest.drained:
        return f"only commits epoch {newest.epoch}, in which the job was drained, and ends: its last run had no end"
    ended = ", in which its sources were read to their ends" if manifest.final else ""
    return f"goes on from epoch {newest.epoch}{ended}"


def is_over(folder: RunFolder) -> bool:
    """Says whether a drained job has come to its end, so that no start of it is needed.

    If it was killed, cancelled or failed before, its last epoch may not be committed: a start commits it, and ends.
    """
    ended = folder.read_exit()
    if ended is not None:
        return ended.outcome not in (Outcome.CANCELLED, Outcome.FAILED)
    desired = folder.read_desired()
    return desired is None or not desired.running


def _has_begun(store: str, job: str) -> bool:
    """Says whether a JobMaster of the last start on this machine has claimed the job."""
    folder = RunFolder(store, job)
    launch = folder.read_launch()
    return launch is not None and folder.has_begun(launch)
