"""The savepoints of a job, as its history and its store tell them; also after the job has ended.

The history knows every savepoint that was asked for, wherever it was written and whether it succeeded. The store knows
those that exist in the job's own folder. What exists counts: a JobMaster may die before it notes that it made one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec

from engine.core.errors import CorruptSnapshot, ForeignSnapshot, NoSavepoint, StoreError, WeirError
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.jobmaster.actions import Outcome
from engine.jobmaster.events import (
    AnyEvent,
    SavepointCompleted,
    SavepointFailed,
    SavepointTaken,
    SavepointTriggered,
    StopFailed,
    Stopped,
    Stopping,
)
from engine.snapshot.savepoints import Savepoint, SavepointFolder
from engine.store.below import Below

SAVEPOINTS = 500
"""The number of savepoints that are remembered."""

LOST = "its JobMaster ended before it was complete"
ENDED_FIRST = "the job ended first"


class SavepointState(StrEnum):
    """GONE: it was completed, and is not at its place any more: somebody deleted it or moved it away."""

    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"
    GONE = "gone"


class SavepointRecord(msgspec.Struct, kw_only=True):
    """One savepoint. `epoch` is the job's newest epoch when it was taken; fields that are not known are None.

    `stopping`: "no", "suspend" or "drain", which is what becomes of the job behind it.
    """

    savepoint: str
    place: str
    state: SavepointState = SavepointState.PENDING
    checkpoint: int | None = None
    stopping: str = "no"
    requested_at_ms: int | None = None
    ended_at_ms: int | None = None
    duration_ms: float | None = None
    bytes: int | None = None
    epoch: int | None = None
    reason: str = ""


class StopRecord(msgspec.Struct, kw_only=True):
    """The newest request to stop the job. `doing` says in words how far it has come.

    If it `failed`, the job goes on, and `reason` says why; otherwise it has `ended` the job, or is under way.
    """

    drain: bool
    savepoint: str
    requested_at_ms: int
    doing: str = "taking the last snapshot"
    failed: bool = False
    ended: bool = False
    reason: str = ""

    @property
    def under_way(self) -> bool:
        return not self.failed and not self.ended


class SavepointRecords:
    """Puts the savepoints of a job together from its events. `stop`: the newest request to stop the job."""

    def __init__(self, events: Iterable[AnyEvent] = ()) -> None:
        self.stop: StopRecord | None = None
        self._generation = 0
        self._records: deque[SavepointRecord] = deque(maxlen=SAVEPOINTS)
        for event in events:
            self.add(event)

    @property
    def newest_first(self) -> list[SavepointRecord]:
        return list(reversed(self._records))

    def add(self, event: AnyEvent) -> None:
        if event.generation > self._generation:  # what an earlier JobMaster left is not what this event is about
            self._generation = event.generation
            self.settle(LOST)
        match event:
            case SavepointTriggered():
                record = self._begun(event.name, event.place, event.at_ms)
                record.checkpoint, record.stopping = event.checkpoint, event.stopping
            case SavepointTaken():
                record = self._pending(event.name, event.place, event.at_ms)
                record.bytes = event.state_bytes
                if self.stop is not None and record.stopping != "no":
                    self.stop.doing = f"copying {event.state_bytes:,} bytes to {event.place}"
            case SavepointCompleted():
                record = self._pending(event.name, event.place, event.at_ms)
                record.checkpoint, record.bytes, record.epoch = event.checkpoint, event.state_bytes, event.epoch
                record.duration_ms = event.duration_ms
                record.state, record.ended_at_ms = SavepointState.COMPLETED, event.at_ms
            case SavepointFailed():
                _fail(self._pending(event.name, event.place, event.at_ms), event.reason, event.at_ms)
            case Stopping():
                doing = "draining the sources" if event.drain else "taking the last snapshot"
                self.stop = StopRecord(
                    drain=event.drain, savepoint=event.savepoint, requested_at_ms=event.at_ms, doing=doing
                )
            case StopFailed():
                self._fail_stop(event.reason)
            case Stopped():
                if event.outcome == Outcome.STOPPED and self.stop is not None:
                    self.stop.doing, self.stop.ended = f"the job has ended: {event.reason}", True
                    self.stop.failed, self.stop.reason = False, ""  # its JobMaster may have died behind a drained epoch
                    self._fail_pending(event.reason, event.at_ms)
                else:
                    self.settle(f"{ENDED_FIRST}: {event.reason}", event.at_ms)

    def settle(self, why: str, at_ms: int | None = None) -> None:
        """Fails the savepoints that no JobMaster will complete, and a stop that did not end the job."""
        self._fail_pending(why, at_ms)
        self._fail_stop(why)

    def _fail_pending(self, why: str, at_ms: int | None) -> None:
        for record in self._records:
            if record.state is SavepointState.PENDING:
                _fail(record, why, at_ms)

    def _fail_stop(self, why: str) -> None:
        if self.stop is not None and self.stop.under_way:  # one that ended the job is not failed by a later JobMaster
            self.stop.failed, self.stop.reason = True, why

    def _begun(self, name: str, place: str, at_ms: int) -> SavepointRecord:
        record = SavepointRecord(savepoint=name, place=place, requested_at_ms=at_ms)
        self._records.append(record)
        return record

    def _pending(self, name: str, place: str, at_ms: int) -> SavepointRecord:
        """Returns the pending record of a place, or a new one: a stop may fail before its savepoint is triggered."""
        for record in reversed(self._records):
            if record.place == place and record.state is SavepointState.PENDING:
                return record
        return self._begun(name, place, at_ms)


def _fail(record: SavepointRecord, why: str, at_ms: int | None) -> None:
    record.state, record.reason, record.ended_at_ms = SavepointState.FAILED, why, at_ms


def with_store(
    known: Iterable[SavepointRecord], store: Store, paths: JobPaths, open_place: Callable[[str], Store]
) -> list[SavepointRecord]:
    """Returns the records, newest first, as the stores tell them: with those that exist and without a record, too.

    `known` are newest first. A place holds one savepoint: an older one of the same place was deleted.
    """
    own = {folder.place: folder for folder in _own_folders(store, paths)}
    heads = {place: head for place, folder in own.items() if (head := _head(folder)) is not None}
    records: list[SavepointRecord] = []
    there: set[str] = set()
    for record in known:
        checked = _checked(record, paths.job, own, heads, open_place)
        if checked.state is SavepointState.COMPLETED and checked.place in there:
            checked = msgspec.structs.replace(checked, state=SavepointState.GONE)  # a later one took its place
        if checked.state is SavepointState.COMPLETED:
            there.add(checked.place)
        records.append(checked)
    there |= {record.place for record in records if record.state is SavepointState.PENDING}  # about to be told
    records += [_of_head(head, place) for place, head in heads.items() if place not in there]
    return sorted(records, key=lambda record: record.requested_at_ms or 0, reverse=True)


def with_place(
    record: SavepointRecord, store: Store, paths: JobPaths, open_place: Callable[[str], Store]
) -> SavepointRecord:
    """Returns the record as its place tells. Reads one file at most, and none while the savepoint is under way."""
    own = SavepointFolder(Below(store, paths.savepoint(record.savepoint)))
    return _checked(record, paths.job, {}, {}, lambda place: own.store if place == own.place else open_place(place))


def _own_folders(store: Store, paths: JobPaths) -> list[SavepointFolder]:
    names = dict.fromkeys(path.split("/")[2] for path in store.list(paths.savepoints()) if path.count("/") > 2)
    return [SavepointFolder(Below(store, paths.savepoint(name))) for name in names]


def _head(folder: SavepointFolder) -> Savepoint | None:
    try:
        return folder.head()
    except (NoSavepoint, CorruptSnapshot, ForeignSnapshot, StoreError):
        return None


def _checked(
    record: SavepointRecord,
    job: str,
    own: dict[str, SavepointFolder],
    heads: dict[str, Savepoint],
    open_place: Callable[[str], Store],
) -> SavepointRecord:
    """Looks whether a completed savepoint is still there. One whose place can't be reached counts as there.

    Its place may hold another one since, which must not be shown, or deleted, in its stead. One that failed may have
    been made after all, before its JobMaster died or heard of it.
    """
    failed = record.state is SavepointState.FAILED and record.checkpoint is not None
    if not failed and record.state is not SavepointState.COMPLETED:
        return record
    try:
        head = heads.get(record.place) or (own.get(record.place) or SavepointFolder(open_place(record.place))).head()
    except NoSavepoint:  # files that a delete left are no savepoint
        return record if failed else msgspec.structs.replace(record, state=SavepointState.GONE)
    except CorruptSnapshot as error:  # one that is damaged is there, and its owner has to hear of it
        return record if failed else msgspec.structs.replace(record, reason=f"{error}. {_MEND}")
    except ForeignSnapshot as error:
        return record if failed else msgspec.structs.replace(record, reason=str(error))
    except (WeirError, OSError):
        return record
    is_it = (head.job, head.name, head.checkpoint) == (job, record.savepoint, record.checkpoint or head.checkpoint)
    if not failed:
        return record if is_it else msgspec.structs.replace(record, state=SavepointState.GONE)
    return _made_after_all(record, head) if is_it else record


_MEND = "Bring it back from a backup, or delete the folder by hand if nobody needs it"


def _made_after_all(record: SavepointRecord, head: Savepoint) -> SavepointRecord:
    return msgspec.structs.replace(
        record, state=SavepointState.COMPLETED, bytes=head.state_bytes, epoch=head.epoch, reason=""
    )


def _of_head(head: Savepoint, place: str) -> SavepointRecord:
    return SavepointRecord(
        savepoint=head.name,
        place=place,
        state=SavepointState.COMPLETED,
        checkpoint=head.checkpoint,
        requested_at_ms=head.created_ms,
        bytes=head.state_bytes,
        epoch=head.epoch,
    )
