"""Finds what nobody needs of a job's snapshots and savepoints: what JobMasters left that died or were replaced.

Any process may do so at any moment, beside a running JobMaster too, and beside one that sleeps and wakes up later.
Invariants: only files of generations that a later fence has ended are garbage, since nobody but the newest generation
takes checkpoints or publishes epochs. A savepoint needs no epoch, so its writer has to be given up before its files go.
What an epoch of the log needs (`engine/snapshot/retention.py`) is no garbage. If a record or a manifest can't be read,
nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.protocol.epoch_records import LogRecord
from engine.snapshot.beginning import is_claim
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.retention import Needs
from engine.snapshot.savepoints import SavepointFolder


@dataclass(frozen=True)
class Garbage:
    """A file or a folder that nobody needs, with the reason and the number of its files.

    `give_up` has to return True before it is deleted: until then its writer may still make a savepoint of it.
    """

    path: str
    why: str
    files: int = 1
    give_up: Callable[[], bool] = lambda: True


def find_garbage(log: EpochLog) -> list[Garbage]:
    """Returns the garbage of a job. Raises CorruptSnapshot if a record or a manifest is damaged."""
    last = log.last()
    if last is None:
        return []  # a fork, or a job that begins with a savepoint, is being made
    return [*_snapshots(log, last), *_savepoints(log.store, log.paths, last.generation)]


def _snapshots(log: EpochLog, last: LogRecord) -> Iterator[Garbage]:
    found: dict[tuple[int, int], list[str]] = {}
    for fenced in range(1, last.generation):
        for path in log.store.list(log.paths.generation(fenced)):
            if parsed := log.paths.parse_checkpoint(path):
                found.setdefault(parsed, []).append(path)
    if not found:
        return
    refs, needs = log.refs(last), Needs(log)
    for ref, manifest in zip(refs, log.read_manifests(refs), strict=True):
        needs.add(ref, manifest)
    needed = needs.of(refs)
    for (of, checkpoint), files in sorted(found.items()):
        # A snapshot that was claimed with a savepoint is left to the JobMaster, which deletes both.
        if (of, checkpoint) not in needed and not any(map(is_claim, files)):
            yield Garbage(log.paths.checkpoint(of, checkpoint), "a checkpoint that no epoch needs", len(files))


@dataclass(frozen=True)
class Almost:
    """A savepoint all of whose files are written. The JobMaster that wrote them was replaced before its last step.

    That JobMaster may only sleep, so its files are no garbage. `complete` takes the step in its place.
    """

    path: str
    files: int
    complete: Callable[[], bool]


def almost_made(log: EpochLog) -> list[Almost]:
    """Returns the savepoints in the job's folder that only lack their head. Nobody else would ever make or delete them.

    Others are garbage, or are being written by the newest generation.
    """
    last = log.last()
    if last is None:
        return []
    found = []
    for name, writer, files in _left_by_writers(log.store, log.paths, last.generation):
        folder = SavepointFolder(log.store.below(log.paths.savepoint(name)))
        if not folder.exists() and folder.is_sealed(writer):
            found.append(Almost(log.paths.savepoint(name), files, partial(folder.complete, writer)))
    return found


def _savepoints(store: Store, paths: JobPaths, generation: int) -> Iterator[Garbage]:
    """Yields what writers of savepoints left that were replaced before they had made one."""
    for name, writer, files in _left_by_writers(store, paths, generation):
        folder = SavepointFolder(store.below(paths.savepoint(name)))
        there = folder.exists()
        if folder.head().manifest.startswith(f"{writer}/") if there else folder.is_sealed(writer):
            continue
        given_up = partial(folder.give_up, writer)
        yield Garbage(f"{paths.savepoint(name)}/{writer}", "a savepoint that was not completed", files, given_up)


def _left_by_writers(store: Store, paths: JobPaths, generation: int) -> Iterator[tuple[str, str, int]]:
    """Yields savepoint, writer and number of files of each writer that was replaced, whether it made one or not."""
    writers: dict[tuple[str, str], int] = {}
    for path in store.list(paths.savepoints()):
        parts = path.removeprefix(f"{paths.savepoints()}/").split("/")
        if len(parts) > 2:
            writers[parts[0], parts[1]] = writers.get((parts[0], parts[1]), 0) + 1
    for (name, writer), files in sorted(writers.items()):
        parsed = writer.split("-")
        if len(parsed) == 4 and parsed[1].isdecimal() and int(parsed[1]) < generation:
            yield name, writer, files
