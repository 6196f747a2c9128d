"""Begins a job from a savepoint: copies its state into the job's part of the store (D5, D9).

The new job has the savepoint's state and positions, and no output yet. Output that waited for a commit in the savepoint
is the original job's: its next epoch publishes it, so the new job must not.

Invariants: nothing counts before the record of the epoch log exists, so `begin` may end between any two writes and be
done again. The savepoint is only read. One that was claimed is deleted together with the copy of its state, which
happens when retention no longer needs that. The claim is written after the record: a copy that no record names, of a
command that was killed or came second, owns nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from engine.core.errors import CorruptSnapshot, ForeignSnapshot, NoSavepoint, StoreError, WeirError
from engine.core.ports import Store
from engine.protocol.epoch_records import Created, LogRecord, RecordKind, job_id_from
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.rewind import Pause, as_forked, definite, insist
from engine.snapshot.savepoints import Savepoint, SavepointFolder
from engine.store.places import open_place, remove_if_empty

_CLAIMED = "claimed.json"


class _Claimed(msgspec.Struct, frozen=True):
    """The savepoint that a copied snapshot was made of, and that is deleted with it."""

    place: str
    checksum: str


def begun_from(log: EpochLog, head: Savepoint) -> bool:
    """Says whether the job has begun from this savepoint already, and has no epoch of its own since."""
    last = log.last()
    if last is None or last.newest is None or last.newest.epoch:
        return False
    manifest = log.read_manifest(last.newest)
    return (manifest.checkpoint, manifest.created_ms) == (head.checkpoint, head.created_ms)


def is_newest_epoch(log: EpochLog, head: Savepoint) -> bool:
    """Says whether this savepoint is the job's own newest epoch: then the job simply goes on."""
    last = log.last()
    if last is None or last.newest is None or not head.stopped or head.job_id != last.job_id:
        return False
    return (head.epoch, head.checkpoint) == (last.newest.epoch, last.newest.checkpoint)


def begin(folder: SavepointFolder, log: EpochLog, owner: str, pause: Pause, *, claim: bool) -> Savepoint:
    """Makes the savepoint the state that the job goes on from. The job has no epoch yet. Returns the savepoint's head.

    `claim`: the savepoint is deleted when the job no longer needs this state.
    """
    head = folder.head()
    last = log.last()
    assert last is None or last.newest is None, "a job that has epochs goes on from its own"
    generation = last.generation + 1 if last is not None else 1
    to = log.paths.copy(generation, head.checkpoint, owner)
    try:
        copied = folder.copy_to(log.store, to)
    except WeirError:
        _forget(log, to)
        raise
    ref = log.write_manifest(as_forked(copied, log.paths.job, copied.inputs), to)
    number, job_id = (1, job_id_from(owner)) if last is None else (last.number + 1, last.job_id)
    used = last.next_checkpoint if last is not None else 1
    next_checkpoint = max(used, ref.checkpoint + 1)
    record = LogRecord(number, RecordKind.FENCE, generation, owner, ref, next_checkpoint, job_id).sealed()
    if insist(lambda: definite(log.append_fence(record)), pause) is Created.EXISTS:
        if not log.holds(record):  # otherwise a JobMaster goes on behind it, from this copy
            _forget(log, to)
        raise StoreError(f"another process has just started job {log.paths.job!r}: look at it with weir status")
    if claim:
        own(folder, head, log)
    return head


def _forget(log: EpochLog, copy: str) -> None:
    """Deletes a copy that no record names. If the store does not do it now, it is in nobody's way."""
    with suppress(StoreError):
        log.store.delete(copy)


def own(folder: SavepointFolder, head: Savepoint, log: EpochLog) -> None:
    """Makes the job, which has begun from this savepoint, its owner. It may be repeated."""
    last = log.last()
    assert last is not None and last.newest is not None, "a job owns a savepoint only after it has begun from it"
    claimed = f"{last.newest.path.rpartition('/')[0]}/{_CLAIMED}"
    log.store.write(claimed, msgspec.json.encode(_Claimed(folder.place, head.checksum)))
    log.store.sync([claimed])


def is_claim(path: str) -> bool:
    """Returns whether this file of a snapshot names a savepoint that was claimed with it."""
    return path.endswith(f"/{_CLAIMED}")


def delete_claimed(store: Store, files: Iterable[str]) -> None:
    """Deletes the savepoints that were claimed with the snapshot in these files."""
    for path in files:
        if not is_claim(path):
            continue
        claimed = msgspec.json.decode(store.read(path), type=_Claimed)
        folder = SavepointFolder(open_place(claimed.place))
        try:
            if folder.head().checksum == claimed.checksum:
                folder.delete()
                remove_if_empty(folder.place)
        except (NoSavepoint, CorruptSnapshot, ForeignSnapshot):
            pass  # somebody has deleted it, or put something else in its place
