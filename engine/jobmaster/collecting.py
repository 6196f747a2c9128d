"""Collects the garbage of a job, for `weir gc` and `POST /gc`. Safe at any moment, beside a running JobMaster too.

A savepoint that lacks nothing but its last step is completed first: it is no garbage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


def collect(store: Store, job: str, *, dry_run: bool, ended: bool = False) -> Collection:
    """Deletes what nobody needs of a job; with `dry_run` only says what that is.

    `ended`: no JobMaster runs the job now, so a savepoint that the last one has sealed only lacks its last step, too.
    What can't be deleted keeps nothing else from being deleted.
    """
    log = EpochLog(store, JobPaths(job))
    collected: list[Collected] = []
    problems: list[str] = []
    completed: list[str] = []
    with _told(problems):
        for almost in almost_made(log, ended=ended):
            with _told(problems):
                completed += [almost.path] if dry_run or almost.complete() else []
        for one in find_garbage(log, problems):
            with _told(problems):
                if dry_run or one.give_up():  # else its writer has made, or is about to make, a savepoint of it
                    collected.append(_delete(store, one.path, one.why, dry_run))
        for table_store, path in _orphans(log):
            with _told(problems):
                collected.append(_delete(table_store, path, "a folded file that no fold names", dry_run))
    return Collection(job, dry_run, collected, problems, completed)


@contextmanager
def _told(problems: list[str]) -> Iterator[None]:
    """Adds what could not be judged or deleted to the problems."""
    try:
        yield
    except (CorruptSnapshot, DamagedTable, ForeignSnapshot, StoreError) as error:
        problems.append(str(error))
    except (FileNotFoundError, NoSavepoint) as error:  # its owner has deleted it in this moment
        problems.append(f"{error}; somebody else deletes there now: try again")


def _orphans(log: EpochLog) -> Iterator[tuple[Store, str]]:
    """Yields the folded files that JobMasters left which were replaced before they had made the fold."""
    last = log.last()
    if last is None or last.newest is None:
        return
    sinks = log.read_manifest(last.newest).description.sinks
    for store, table in [table_place(sink, log.store, log.paths) for sink in sinks if sink.table]:
        for path in orphans(store, table, last.job_id):
            yield store, path


def _delete(store: Store, path: str, why: str, dry_run: bool) -> Collected:
    inside = store.list(path) or [path]
    size = sum(one or 0 for one in store.sizes(inside))  # its owner may have deleted some meanwhile
    if not dry_run:
        store.delete(path)
    return Collected(path, why, len(inside), size)
