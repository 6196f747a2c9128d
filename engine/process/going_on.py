"""Says what the next start of a job goes on from: its newest epoch, or nothing. `weir` and Dagster show it."""

from __future__ import annotations

from engine.core.errors import CorruptSnapshot, ForeignSnapshot, StoreError
from engine.core.paths import JobPaths
from engine.snapshot.epoch_log import EpochLog
from engine.store.opening import open_store

AFRESH = "begins afresh: no epoch yet"


def goes_on(store: str, job: str) -> str:
    """Returns words that follow the name of the job; empty if the store does not answer now.

    What can't be read is left to the JobMaster, which reads it again and says what to do.
    """
    try:
        log = EpochLog(open_store(store), JobPaths(job))
        last = log.last()
        newest = last.newest if last is not None else None
        if newest is None:
            return AFRESH
        final = log.read_manifest(newest).final
    except CorruptSnapshot:
        return f"can't go on from epoch {newest.epoch}, whose files are not intact" if newest is not None else ""
    except ForeignSnapshot:
        assert newest is not None
        return f"can't go on from epoch {newest.epoch}, which another version of Weir or another job made"
    except (StoreError, OSError):
        return ""
    ended = ", in which its sources were read to their ends" if final else ""
    return f"goes on from epoch {newest.epoch}{ended}"
