"""`Savepoints` decides about savepoints, and about stops behind a last epoch (D5, D6).

A savepoint that the job goes on behind commits nothing: what sinks pre-committed at its barrier stays with them and
goes with the next checkpoint. If it lies in the job's own store, slots write their state right into its folder. One
that lies elsewhere (`--to`) is copied there, and its own files are deleted.

A stop is taken as one more checkpoint, after which sources emit nothing. If it has a savepoint, the files are copied
first; then the epoch is published and committed; then the savepoint is made, and the job ends. So whatever can go
wrong in the savepoint's folder goes wrong before the epoch exists, and the job goes on as if nothing had been asked.

Invariants: every savepoint that was triggered is completed or failed, exactly once. Only one stop is under way at a
time. The files of a savepoint are kept until it is settled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from engine.core.errors import StoreError, SyncFailed
from engine.core.ports import Store
from engine.jobmaster import events
from engine.jobmaster.actions import DRAINED, Action, Note
from engine.jobmaster.publisher import OffLoop, Publisher
from engine.protocol.checkpoint import CompletedCheckpoint
from engine.protocol.coordinator import CheckpointCoordinator, CoordinatorAction
from engine.protocol.failures import CheckpointFailure
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Manifest
from engine.protocol.savepoint import SavepointRequest, Stopping, StopRequest
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.garbage import settle_savepoints
from engine.snapshot.savepoints import (
    Draft,
    Origin,
    Savepoint,
    SavepointFolder,
    UnknownSavepoint,
    shown_place,
    writer_of,
)
from engine.store.below import Below
from engine.store.places import remove_if_empty

LATE_WRITES_MS = 600_000.0
"""After so long nobody writes state any more for a savepoint that has failed."""

MADE_LATER = ". It is made as soon as the store answers, if it does not exist"
"""What becomes of a savepoint of which the store did not say whether it exists, while the job goes on."""

T = TypeVar("T")
OpenPlace = Callable[[str], Store]


@dataclass(frozen=True)
class Refusal:
    """A savepoint or a stop that can't be begun now."""

    why: str


@dataclass(frozen=True)
class FilesCopied:
    """The files of the savepoint that the job stops behind are written: its epoch can be published."""

    completed: CompletedCheckpoint


@dataclass(frozen=True)
class StopFailed:
    """The job is not stopped and has to go on: its sources wait behind a barrier, or have ended.

    `completed`: its checkpoint, if every subtask has acknowledged it and it will not be published.
    """

    detail: str
    completed: CompletedCheckpoint | None = None


@dataclass(frozen=True)
class Settled:
    """A savepoint is completed or failed."""


Outcome = FilesCopied | StopFailed | Settled
Tell = Callable[[Outcome, float], list[Action]]


@dataclass
class _Open:
    """A savepoint that is neither completed nor failed. `epoch` is the job's newest when it was triggered.

    `into`: the folder of the store into which slots write its state; empty: it is copied. `draft`: its files, once they
    are copied for a stop.
    """

    request: SavepointRequest
    place: str
    attempt: AttemptId
    checkpoint: int
    triggered_ms: float
    stopping: Stopping
    epoch: int
    into: str = ""
    draft: Draft | None = None


@dataclass
class _Stop:
    """A stop under way. `checkpoint` is None until it is triggered. `said`: what became of its savepoint."""

    request: StopRequest
    checkpoint: int | None = None
    draining: bool = False
    said: str = ""


class Savepoints:
    """`tell` brings an outcome to the JobMaster and returns what it decides; `open_place` opens a folder elsewhere."""

    def __init__(
        self, publisher: Publisher, log: EpochLog, open_place: OpenPlace, off_loop: OffLoop, tell: Tell
    ) -> None:
        self._publisher = publisher
        self._log = log
        self._open_place = open_place
        self._off_loop = off_loop
        self._tell = tell
        self._open: dict[int, _Open] = {}
        self._stop: _Stop | None = None
        self._left: list[tuple[_Open, float]] = []
        """Savepoints that failed, and when: slots may still write into their folders, or the store was away."""
        self._undecided: list[tuple[SavepointRequest, str]] = []
        """Savepoints, with their writers, of which the store did not say whether it made them."""
        self._inherited = True  # what JobMasters before this one began may still be there

    @property
    def under_way(self) -> bool:
        """True while a savepoint is neither completed nor failed: a job that finishes waits for it."""
        return bool(self._open)

    @property
    def stopping(self) -> bool:
        return self._stop is not None

    @property
    def held(self) -> set[tuple[int, int]]:
        """The (generation, checkpoint) of savepoints under way, whose files no sweep may delete."""
        return {(one.attempt.generation, one.checkpoint) for one in self._open.values()}

    # ------------------------------------------------------------------ begin

    def refusal(self, request: SavepointRequest | None) -> Refusal | None:
        """Says why a savepoint, or a stop with this savepoint, can't be begun now; None if it can."""
        if self._stop is not None:
            return Refusal("the job is being stopped already: wait until it has ended")
        if request is not None and any(one.place == self._place(request) for one in self._open.values()):
            return Refusal(f"a savepoint is being written to {self._place(request)} now: choose another name")
        return None

    def trigger(
        self, request: SavepointRequest, coordinator: CheckpointCoordinator, now_ms: float
    ) -> tuple[list[Action], list[CoordinatorAction]]:
        """Triggers a savepoint that the job goes on behind."""
        checkpoint = coordinator.next_checkpoint
        decided = coordinator.trigger_savepoint(request, now_ms)
        return self._triggered(request, coordinator.attempt, checkpoint, Stopping.NO, now_ms), decided

    def stop(self, request: StopRequest) -> list[Action]:
        """Begins a stop. The caller holds its coordinator, and then asks `drain_now` and `trigger_stop`."""
        assert self._stop is None
        self._stop = _Stop(request)
        name = request.savepoint.name if request.savepoint is not None else ""
        return [Note(events.Stopping(request.drain, name))]

    def drain_now(self, coordinator: CheckpointCoordinator) -> bool:
        """Says, once, that sources have to be drained now.

        They are drained only when no checkpoint is under way: its snapshot could hold the windows that a drain fires,
        and if the drain then failed, the job would go on from there.
        """
        stop = self._stop
        if stop is None or not stop.request.drain or stop.draining or coordinator.pending:
            return False
        stop.draining = True
        return True

    def trigger_stop(
        self, coordinator: CheckpointCoordinator, now_ms: float, *, all_finished: bool
    ) -> tuple[list[Action], list[CoordinatorAction]]:
        """Triggers the checkpoint that the job stops behind: at once, or when drained sources have ended."""
        stop = self._stop
        ready = stop is not None and (not stop.request.drain or (stop.draining and all_finished))
        if stop is None or stop.checkpoint is not None or not ready:
            return [], []
        stop.checkpoint = coordinator.next_checkpoint
        decided = coordinator.trigger_stop(stop.request, now_ms)
        request, stopping = stop.request.savepoint, stop.request.stopping
        if request is None:
            return [], decided
        return self._triggered(request, coordinator.attempt, stop.checkpoint, stopping, now_ms), decided

    def _triggered(
        self, request: SavepointRequest, attempt: AttemptId, checkpoint: int, stopping: Stopping, now_ms: float
    ) -> list[Action]:
        place, newest = self._place(request), self._publisher.newest
        epoch = newest.epoch if newest is not None else 0
        into = self._writes_into(request, attempt, checkpoint) if stopping is Stopping.NO else ""
        self._open[checkpoint] = _Open(request, place, attempt, checkpoint, now_ms, stopping, epoch, into)
        return [Note(events.SavepointTriggered(request.name, place, checkpoint, stopping.value))]

    def _writes_into(self, request: SavepointRequest, attempt: AttemptId, checkpoint: int) -> str:
        """Returns the folder for the state files: that of the savepoint, if it is in the job's part of the store."""
        if request.folder:
            return ""
        writer = writer_of(self._publisher.job_id, attempt, checkpoint)
        return f"{self._log.paths.savepoint(request.name)}/{writer}"

    def into(self, checkpoint: int) -> str:
        """Returns the folder into which slots write the state of this checkpoint; empty: that of the checkpoint."""
        one = self._open.get(checkpoint)
        return one.into if one is not None else ""

    # ------------------------------------------------------------------ store

    def store(self, completed: CompletedCheckpoint, now_ms: float) -> list[Action]:
        """Makes the savepoint of a snapshot that every subtask has acknowledged; for a stop it copies the files."""
        one = self._open[completed.checkpoint]
        manifest, broken = self._publisher.manifest_of(completed)
        if broken:
            return self._not_stored(one, completed, f"{CheckpointFailure.LEDGER_MISMATCH.text}: {broken}", now_ms)
        origin = Origin(self._log, self._publisher.job_id, one.epoch)
        noted = Note(events.SavepointTaken(one.request.name, one.place, one.checkpoint, manifest.state_bytes))
        if not completed.stops:
            work = partial(self._write, one.request, manifest, origin)
            return [noted, self._off_loop("savepoint", work, partial(self._written, one))]
        copy = partial(self._prepare, one.request, manifest, origin)
        return [noted, self._off_loop("savepoint", copy, partial(self._prepared, one, completed))]

    def _write(self, request: SavepointRequest, manifest: Manifest, origin: Origin) -> Savepoint:
        return _without_sync_failed(lambda: self._folder(request).write(request.name, manifest, origin, stopped=False))

    def _prepare(self, request: SavepointRequest, manifest: Manifest, origin: Origin) -> Draft:
        return _without_sync_failed(lambda: self._folder(request).prepare(manifest, origin))

    def _written(self, one: _Open, head: Savepoint | None, error: BaseException | None, now_ms: float) -> list[Action]:
        """Ends a savepoint that the job goes on behind: its own files are not needed any more."""
        discarded = self._publisher.discard(one.attempt, one.checkpoint)
        why = str(error)
        if isinstance(error, UnknownSavepoint):
            self._undecided.append((one.request, self._writer(one)))
            why += MADE_LATER
        elif head is None:
            self._left.append((one, now_ms))
        if head is None:
            return [*self._fail(one, why), *discarded, *self._tell(Settled(), now_ms)]
        return [*self._complete(one, head, now_ms), *discarded, *self._tell(Settled(), now_ms)]

    def _prepared(
        self,
        one: _Open,
        completed: CompletedCheckpoint,
        draft: Draft | None,
        error: BaseException | None,
        now_ms: float,
    ) -> list[Action]:
        """Lets the epoch of a stop be published, unless the stop has failed meanwhile."""
        if self._open.get(one.checkpoint) is not one:
            self._left.append((one, now_ms))
            return [self._forget(one, draft.writer)] if draft is not None else []
        if draft is None:
            return self._not_stored(one, completed, str(error), now_ms)
        one.draft = draft
        return self._tell(FilesCopied(completed), now_ms)

    def _not_stored(self, one: _Open, completed: CompletedCheckpoint, why: str, now_ms: float) -> list[Action]:
        if not completed.stops:
            discarded = self._publisher.discard(one.attempt, one.checkpoint)
            return [*self._fail(one, why), *self._forget_state(one), *discarded, *self._tell(Settled(), now_ms)]
        self._left.append((one, now_ms))
        return [*self._fail_stop(why), *self._tell(StopFailed(why, completed), now_ms)]

    # ------------------------------------------------------------------ end

    def on_abort(self, checkpoint: int, why: str, now_ms: float) -> list[Action]:
        """A checkpoint was aborted: a savepoint of it has failed, and so has a stop behind it."""
        one = self._open.get(checkpoint)
        if self._stop is not None and self._stop.checkpoint == checkpoint:
            return [*self._fail_stop(why), *self._tell(StopFailed(why), now_ms)]
        if one is None:
            return []
        self._left.append((one, now_ms))
        return [*self._fail(one, why), *self._forget_state(one), *self._tell(Settled(), now_ms)]

    def sweep(self, now_ms: float) -> list[Action]:
        """Deletes what slots wrote for savepoints after these had failed, or what the store did not delete then.

        A savepoint whose last step the store did not answer is made now, if it does not exist. The first sweep also
        ends what JobMasters before this one began. If that fails, the next one tries again.
        """
        past = [one for one, failed_ms in self._left if now_ms - failed_ms > LATE_WRITES_MS]
        self._left = [(one, failed_ms) for one, failed_ms in self._left if now_ms - failed_ms <= LATE_WRITES_MS]
        inherited = [self._settle_inherited()] if self._inherited else []
        undecided, self._undecided = self._undecided, []
        decided = [self._decide(request, writer) for request, writer in undecided]
        return [*inherited, *decided, *(self._forget(one, self._writer(one)) for one in past)]

    def _decide(self, request: SavepointRequest, writer: str) -> Action:
        """Takes the last step of a savepoint again, or deletes its files. If the store is away, the next sweep does."""

        def work() -> None:
            folder = self._folder(request)
            if not folder.complete(writer):
                folder.forget(writer)

        def done(_: None, error: BaseException | None, now_ms: float) -> list[Action]:
            if error is not None:
                self._undecided.append((request, writer))
            return []

        return self._off_loop("sweep", lambda: _without_sync_failed(work), done)

    def _settle_inherited(self) -> Action:
        self._inherited = False

        def done(_: None, error: BaseException | None, now_ms: float) -> list[Action]:
            self._inherited = error is not None
            return []

        return self._off_loop("sweep", lambda: _without_sync_failed(lambda: settle_savepoints(self._log)), done)

    def on_attempt_over(self, why: str) -> list[Action]:
        """A stop fails with its attempt, unless its epoch is being published: that decides about it."""
        stop = self._stop
        if stop is None or self._publisher.publishes(stop.checkpoint):
            return []
        return self._fail_stop(why)

    def on_commit_failed(self, checkpoint: int, epoch: int, why: str) -> list[Action]:
        """The epoch of a stop exists and is committed at the next restore, with which the job goes on."""
        if self._stop is None or self._stop.checkpoint != checkpoint:
            return []
        return self._fail_stop(f"epoch {epoch} exists, and is committed when the job goes on from it: {why}")

    def on_committed(self, completed: CompletedCheckpoint, manifest: Manifest) -> list[Action]:
        """Makes the savepoint of a stop whose epoch is committed."""
        assert self._stop is not None and self._stop.checkpoint == completed.checkpoint
        one = self._open.get(completed.checkpoint)
        if one is None:
            return []
        assert one.draft is not None
        finish = partial(self._finish, one, one.draft, manifest)
        return [self._off_loop("savepoint", finish, partial(self._finished, one, manifest))]

    def _finish(self, one: _Open, draft: Draft, manifest: Manifest) -> Savepoint:
        folder = self._folder(one.request)
        return _without_sync_failed(
            lambda: folder.finish(draft, one.request.name, manifest, manifest.epoch, stopped=True)
        )

    def _finished(
        self, one: _Open, manifest: Manifest, head: Savepoint | None, error: BaseException | None, now_ms: float
    ) -> list[Action]:
        if head is not None:
            return [*self._complete(one, head, now_ms), *self._tell(Settled(), now_ms)]
        assert one.draft is not None
        if isinstance(error, UnknownSavepoint):
            self._undecided.append((one.request, one.draft.writer))
        else:
            self._left.append((one, now_ms))
        one.draft = None  # `finish` has deleted it, unless the store may still make the savepoint
        why = f"epoch {manifest.epoch} is published and committed, but its savepoint could not be made: {error}"
        if isinstance(error, UnknownSavepoint) and not manifest.drained:
            why += MADE_LATER
        if manifest.drained:  # its windows have fired for good: the job ends, without the savepoint
            assert self._stop is not None
            self._stop.said = f"; {why}"
            return [*self._fail(one, why), *self._tell(Settled(), now_ms)]
        return [*self._fail_stop(why), *self._tell(StopFailed(why), now_ms)]

    def how_it_stopped(self, epoch: int) -> str:
        """Returns the reason with which a stopped job ends."""
        assert self._stop is not None
        how = f"{DRAINED}: all windows and timers have fired, up to" if self._stop.request.drain else "behind"
        return f"{how} epoch {epoch}{self._stop.said}"

    def _complete(self, one: _Open, head: Savepoint, now_ms: float) -> list[Action]:
        del self._open[one.checkpoint]
        if self._stop is not None and self._stop.checkpoint == one.checkpoint:
            self._stop.said = f", with the savepoint {one.place}"
        took_ms = now_ms - one.triggered_ms
        return [
            Note(events.SavepointCompleted(head.name, one.place, one.checkpoint, head.epoch, head.state_bytes, took_ms))
        ]

    def _fail(self, one: _Open, why: str) -> list[Action]:
        del self._open[one.checkpoint]
        forget = self._forget(one, one.draft.writer if one.draft is not None else "")
        return [Note(events.SavepointFailed(one.request.name, one.place, why)), forget]

    def _fail_stop(self, why: str) -> list[Action]:
        stop, self._stop = self._stop, None
        assert stop is not None
        one = self._open.get(stop.checkpoint) if stop.checkpoint is not None else None
        request = stop.request.savepoint
        failed: list[Action] = []
        if one is not None:
            failed = self._fail(one, why)
        elif request is not None:  # it was asked for and not triggered yet
            failed = [Note(events.SavepointFailed(request.name, self._place(request), why))]
        return [*failed, Note(events.StopFailed(why))]

    def _writer(self, one: _Open) -> str:
        return writer_of(self._publisher.job_id, one.attempt, one.checkpoint)

    def _forget_state(self, one: _Open) -> list[Action]:
        """Deletes what slots have written into the folder of a savepoint that will not be made."""
        return [self._forget(one, one.into.rsplit("/", 1)[1])] if one.into else []

    def _forget(self, one: _Open, writer: str) -> Action:
        """Deletes the files of a savepoint that was not made, and its folder, unless that is one of the user's."""

        def work() -> None:
            if writer:
                self._folder(one.request).forget(writer)
            if not one.request.folder:
                remove_if_empty(one.place)

        return self._off_loop("delete", work, _ignore)

    # ------------------------------------------------------------------ places

    def _place(self, request: SavepointRequest) -> str:
        own = self._log.store.uri(self._log.paths.savepoint(request.name))
        return shown_place(request.folder or own)

    def _folder(self, request: SavepointRequest) -> SavepointFolder:
        return savepoint_folder(self._log, request, self._open_place)


def savepoint_folder(log: EpochLog, request: SavepointRequest, open_place: OpenPlace) -> SavepointFolder:
    """Returns the folder of a savepoint: the one that was asked for, or one in the job's part of the store."""
    if request.folder:
        return SavepointFolder(open_place(request.folder))
    return SavepointFolder(Below(log.store, log.paths.savepoint(request.name)))


def check_new_savepoint(log: EpochLog, request: SavepointRequest, open_place: OpenPlace) -> None:
    """Raises an error that says what to do if the savepoint exists or can't be written."""
    try:
        savepoint_folder(log, request, open_place).check_new()
    except StoreError as error:
        raise StoreError(
            f"no savepoint can be written to {request.folder or 'the store of the job'}: {error}. The job goes on. "
            "Choose another folder, or mend this one. The job's own process writes there, with its user and with the "
            "environment that it was started in: variables that you set in a terminal later count from its next start"
        ) from error


def _without_sync_failed(work: Callable[[], T]) -> T:
    """Turns a failed fsync into an error of the savepoint alone: nothing else depends on what was to be synced."""
    try:
        return work()
    except SyncFailed as error:
        raise StoreError(str(error)) from error


def _ignore(result: Any, error: BaseException | None, now_ms: float) -> list[Action]:
    """Ignores an error: files without a savepoint are in nobody's way."""
    return []
