"""Collects the garbage of a job, for `weir gc` and `POST /gc`. Safe at any moment, beside a running JobMaster too.

A savepoint that lacks nothing but its last step is completed first: it is no garbage.
"""

from __future__ import annotations

import msgspec

from engine.connectors.table.folds import orphans
from engine.connectors.table.log import DamagedTable
from engine.core.errors import CorruptSnapshot, ForeignSnapshot, NoSavepoint, StoreError
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.graph.description import table_place
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.garbage import almost_made, find_garbage


class Collected(msgspec.Struct, frozen=True):
    """One file or folder that was deleted, or would be. `files` and `bytes` count what is in it."""

    path: str
    why: str
    files: int
    bytes: int


class Collection(msgspec.Struct, frozen=True):
    """The garbage of one job. `problems` says what could not be judged or deleted, and why.

    `completed` are the savepoints whose last step was taken, or would be: a JobMaster was killed right before it.
    """

    job: str
    dry_run: bool
    collected: list[Collected]
    problems: list[str]
    completed: list[str] = []

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.collected)


def collect(store: Store, job: str, *, dry_run: bool) -> Collection:
    """Deletes what nobody needs of a job; with `dry_run` only says what that is."""
    log = EpochLog(store, JobPaths(job))
    collected: list[Collected] = []
    problems: list[str] = []
    completed: list[str] = []
    try:
        completed += [one.path for one in almost_made(log) if dry_run or one.complete()]
        for one in find_garbage(log, problems):
            if not dry_run and not one.give_up():
                continue  # a JobMaster that was replaced has made, or is about to make, a savepoint of it
            collected.append(_delete(store, one.path, one.why, dry_run))
        collected += _orphans(log, dry_run)
    except (CorruptSnapshot, DamagedTable, ForeignSnapshot, StoreError) as error:
        problems.append(str(error))
    except (FileNotFoundError, NoSavepoint) as error:  # its owner has deleted it in this moment
        problems.append(f"{error}; somebody else deletes there now: try again")
    return Collection(job, dry_run, collected, problems, completed)


def _orphans(log: EpochLog, dry_run: bool) -> list[Collected]:
    """Deletes folded files that JobMasters left which were replaced before they had made the fold."""
    last = log.last()
    if last is None or last.newest is None:
        return []
    sinks = log.read_manifest(last.newest).description.sinks
    places = [table_place(sink, log.store, log.paths) for sink in sinks if sink.table]
    return [
        _delete(store, path, "a folded file that no fold names", dry_run)
        for store, table in places
        for path in orphans(store, table, last.job_id)
    ]


def _delete(store: Store, path: str, why: str, dry_run: bool) -> Collected:
    inside = store.list(path) or [path]
    size = sum(one or 0 for one in store.sizes(inside))  # its owner may have deleted some meanwhile
    if not dry_run:
        store.delete(path)
    return Collected(path, why, len(inside), size)
