"""Finds what nobody needs of a job's snapshots and savepoints: what JobMasters left that died or were replaced.

Any process may do so at any moment, beside a running JobMaster too, and beside one that sleeps and wakes up later.
Invariants: only files of generations that a later fence has ended are garbage, since nobody but the newest generation
takes checkpoints or publishes epochs. A savepoint needs no epoch, so its writer has to be given up before its files go.
What an epoch of the log needs (`engine/snapshot/retention.py`) is no garbage. If a record or a manifest can't be read,
nothing is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from engine.core.errors import CorruptSnapshot, ForeignSnapshot
from engine.protocol.epoch_records import LogRecord
from engine.snapshot.beginning import is_claim
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.retention import Needs
from engine.snapshot.savepoints import HEAD, SavepointFolder, is_probe, writer_from


@dataclass(frozen=True)
class Garbage:
    """A file or a folder that nobody needs, with the reason and the number of its files.

    `give_up` has to return True before it is deleted: until then its writer may still make a savepoint of it, or it
    may have become somebody else's.
    """

    path: str
    why: str
    files: int = 1
    give_up: Callable[[], bool] = lambda: True


def find_garbage(log: EpochLog, damaged: list[str] | None = None) -> list[Garbage]:
    """Returns the garbage of a job. Raises CorruptSnapshot if a record or a manifest is damaged.

    A savepoint whose head can't be read keeps everything in its folder. `damaged` gets what is wrong with it.
    """
    last = log.last()
    if last is None:
        return []  # a fork, or a job that begins with a savepoint, is being made
    return [*_snapshots(log, last), *_savepoints(log, last, [] if damaged is None else damaged)]


def settle_savepoints(log: EpochLog) -> None:
    """Ends the savepoints of JobMasters that were replaced: completes those that only lack their head, deletes others.

    A JobMaster calls it until it succeeds: only its own savepoints can be left unfinished after that. One that can't be
    completed or deleted keeps no other one.
    """
    problems: list[Exception] = []
    for almost in almost_made(log):
        try:
            almost.complete()
        except Exception as error:
            problems.append(error)
    last = log.last()
    assert last is not None, "a JobMaster has claimed the job"
    for left in _savepoints(log, last, []):
        try:
            if left.give_up():
                log.store.delete(left.path)
        except Exception as error:
            problems.append(error)
    if problems:
        raise problems[0]


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


def almost_made(log: EpochLog, *, ended: bool = False) -> list[Almost]:
    """Returns the savepoints in the job's folder that only lack their head. Nobody else would ever make or delete them.

    Others are garbage, or are being written by the newest generation. `ended`: that one has ended the job, and there
    may never be a later one. To take the last step in its place does no harm if it still runs.
    """
    last = log.last()
    if last is None:
        return []
    found = []
    before = last.generation + 1 if ended else last.generation
    for name, writer, files in _left_by_writers(last.job_id, before, _savepoint_files(log)):
        folder = SavepointFolder(log.store.below(log.paths.savepoint(name)))
        if not folder.exists() and folder.is_sealed(writer):
            found.append(Almost(log.paths.savepoint(name), files, partial(folder.complete, writer)))
    return found


def _savepoints(log: EpochLog, last: LogRecord, damaged: list[str]) -> Iterator[Garbage]:
    """Yields what was left of savepoints: by writers that were replaced before they had made one, and by a deletion."""

    def tell(error: CorruptSnapshot | ForeignSnapshot) -> None:
        told = str(error)
        if isinstance(error, CorruptSnapshot):
            told += ": bring it back from a backup, or delete the folder by hand if nobody needs the savepoint"
        if told not in damaged:
            damaged.append(told)

    files = _savepoint_files(log)
    for name, *inside in files:
        path = "/".join([log.paths.savepoint(name), *inside])
        if len(inside) == 1 and is_probe(inside[0]):  # deeper ones are state, of an operator that has such a uid
            yield Garbage(path, "a file by which a JobMaster found out whether it may write there")
        if inside == [HEAD]:
            husk = SavepointFolder(log.store.below(log.paths.savepoint(name))).is_husk
            try:
                if husk():
                    yield Garbage(path, "the head of a savepoint whose files were deleted", give_up=husk)
            except (CorruptSnapshot, ForeignSnapshot) as error:
                tell(error)
    for name, writer, number in _left_by_writers(last.job_id, last.generation, files):
        place = log.paths.savepoint(name)
        folder = SavepointFolder(log.store.below(place))
        try:
            if folder.may_be_made_by(writer):
                continue
        except (CorruptSnapshot, ForeignSnapshot) as error:
            tell(error)
            continue
        given_up = partial(folder.give_up, writer)
        yield Garbage(f"{place}/{writer}", "a savepoint that was not completed", number, given_up)


def _savepoint_files(log: EpochLog) -> list[list[str]]:
    """Returns the parts of each path in the folders of savepoints: the name of the savepoint first."""
    folder = log.paths.savepoints()
    return [path.removeprefix(f"{folder}/").split("/") for path in log.store.list(folder)]


def _left_by_writers(job_id: str, before: int, files: list[list[str]]) -> Iterator[tuple[str, str, int]]:
    """Yields savepoint, writer and number of files of each writer of a generation before this one, made or not.

    Another job may write a savepoint into this job's folder (`--to`): its log says whether its writer was replaced.
    """
    writers = Counter((name, inside[0]) for name, *inside in files if len(inside) > 1)
    for (name, writer), number in sorted(writers.items()):
        parsed = writer_from(writer)
        if parsed is not None and parsed[0] == job_id and parsed[1] < before:
            yield name, writer, number
