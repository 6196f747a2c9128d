"""Savepoints and stops, with the real JobMaster, slots, operators and tables in one thread.

Topology: two splits of numbered records → count per key (keyed state) → table; the rows of the table say which records
were published and how often. Faults: a place that can't be written, a slot that dies, an attempt that fails, files
that retention would delete. Checks: what is published, what is in the savepoint, what a job that begins from it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from engine.api import (
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
)
from engine.connectors.table import TableCommitter, TableSink
from engine.core.errors import SavepointExists, StoreError
from engine.core.functions import Row
from engine.core.ports import Store
from engine.jobmaster import events, savepoints
from engine.jobmaster.actions import Outcome
from engine.jobmaster.events import AnyEvent
from engine.jobmaster.master import Phase
from engine.jobmaster.publisher import Publisher
from engine.jobmaster.savepoints import Refusal
from engine.protocol.checkpoint import CompletedCheckpoint
from engine.protocol.epoch_records import Created
from engine.protocol.manifest import Manifest
from engine.protocol.savepoint import SavepointRequest, StopRequest
from engine.snapshot.beginning import begin
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.savepoints import SavepointFolder
from engine.store.below import Below
from engine.store.memory import MemoryStore
from engine.testing import Crash, Item, ListSource, LocalRun

RECORDS = 120
NIGHTLY = SavepointRequest("nightly")


class Numbered(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self._seen = context.get_state(ValueStateDescriptor("seen", pa.int64()))

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        seen = (self._seen.value() or 0) + 1
        self._seen.update(seen)
        return [{"n": value["n"], "key": value["key"], "seq": seen}]


def record(n: int) -> dict[str, Any]:
    return {"n": n, "key": f"k{n % 5}", "ts": 1000 * n}


def counting(interval_ms: int | None = 10, items: Callable[[int], list[Item]] | None = None) -> Callable[..., None]:
    """Returns a job that numbers the records of each key."""

    def split(of: int) -> list[Item]:
        return items(of) if items is not None else [record(n) for n in range(of, RECORDS, 2)]

    def job(env: StreamEnvironment) -> None:
        if interval_ms is not None:
            env.enable_checkpointing(interval=interval_ms)
        stream = env.from_source(ListSource(split(0), split(1)), "n long, key string, ts long", uid="source")
        numbered = stream.key_by("key").process(Numbered(), uid="count", schema="n long, key string, seq long")
        numbered.sink_to(TableSink("out"), uid="out")

    return job


def windowed(env: StreamEnvironment) -> None:
    env.enable_checkpointing(interval=10)
    splits = [[record(n) for n in range(of, RECORDS, 2)] for of in (0, 1)]
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    stream = env.from_source(ListSource(*splits), "n long, key string, ts long", uid="source")
    windows = stream.assign_timestamps_and_watermarks(strategy).key_by("key").window(TumblingEventTimeWindows.of("1 h"))
    windows.aggregate(pv=count(), uid="pv").sink_to(TableSink("out"), uid="out")


class Begun:
    """What a run goes on from: a store in which a job has begun."""

    def __init__(self, store: MemoryStore, nonce: str) -> None:
        self.store = store
        self.nonce = nonce


class Run(LocalRun):
    """A run that can be asked for savepoints. `held`: the I/O of these names waits until it is let go."""

    def __init__(self, job: Callable[..., None], parallelism: int = 2, after: Any = None) -> None:
        self.hold = ""
        self.held: list[Any] = []
        super().__init__(job, parallelism, {}, after)

    def savepoint(self, request: SavepointRequest = NIGHTLY) -> int | Refusal:
        taken, actions = self.master.trigger_savepoint(request, self.now_ms())
        self.carry_out(actions)
        return taken

    def stop(self, drain: bool = False, savepoint: SavepointRequest | None = NIGHTLY) -> Refusal | None:
        refusal, actions = self.master.stop(StopRequest(drain, savepoint), self.now_ms())
        self.carry_out(actions)
        return refusal

    def _run_off_loop(self, action: Any) -> None:
        if self.hold and action.name == self.hold:
            self.held.append(action)
        else:
            super()._run_off_loop(action)

    def let_go(self) -> None:
        self.hold = ""
        held, self.held = self.held, []
        for action in held:
            self._run_off_loop(action)

    def kill_slot(self) -> None:
        self.carry_out(self.master.on_slot_gone(self.slots[0].session, "killed", self.now_ms()))
        self.slots[0].alive = False
        self.slots[0] = self._start_slot(0)

    def until(self, *kinds: type) -> Run:
        self.run(until=lambda: any(isinstance(event, kinds) for event in self.events))
        assert self.noted(*kinds), f"it ended without {kinds}: {self.ended}"
        return self

    def epochs_done(self, number: int) -> Run:
        self.run(until=lambda: self.master.stats.checkpoints_completed >= number)
        return self

    def noted(self, *kinds: type) -> list[AnyEvent]:
        return [event for event in self.events if isinstance(event, kinds)]

    def folder(self, request: SavepointRequest = NIGHTLY) -> SavepointFolder:
        return SavepointFolder(Below(self.store, self.paths.savepoint(request.name)))

    def rows(self, table: str) -> list[dict[str, Any]]:
        try:
            return super().rows(table)
        except FileNotFoundError:
            return []  # nothing is published yet

    def numbers(self) -> list[int]:
        return sorted(row["n"] for row in self.rows("out"))


def positions(folder: SavepointFolder) -> set[int]:
    """The records that the savepoint's sources have read."""
    read: set[int] = set()
    for state in folder.manifest().subtasks:
        for split, held in state.inline.get("source", {}).get("splits", {}).items():
            read |= set(range(int(split), int(split) + 2 * held["position"], 2))
    return read


def moved(folder: SavepointFolder) -> SavepointFolder:
    """The savepoint as a plain copy of its files at another place."""
    elsewhere = MemoryStore()
    elsewhere.files = {path: folder.store.read(path) for path in folder.store.list("")}
    return SavepointFolder(elsewhere)


def begun_from(folder: SavepointFolder, job: Callable[..., None], parallelism: int) -> Run:
    """A new job, in a store of its own, that begins from the savepoint."""
    store = MemoryStore()
    run = Run(job, parallelism, Begun(store, "new"))
    begin(folder, EpochLog(store, run.paths), "someone", lambda: None, claim=False)
    return run


def check_counts(rows: list[dict[str, Any]]) -> None:
    """The rows of each key are numbered without a gap: no record is lost or counted twice."""
    for key in {row["key"] for row in rows}:
        numbered = sorted(row["seq"] for row in rows if row["key"] == key)
        assert numbered == list(range(1, len(numbered) + 1))


# --- a savepoint that the job goes on behind ---


@pytest.mark.promise("D5")
def test_a_savepoint_commits_nothing_and_what_was_pre_committed_goes_with_the_next_checkpoint() -> None:
    run = Run(counting(interval_ms=None))
    run.run(until=lambda: run.now_ms() > 30)
    run.savepoint()
    run.until(events.SavepointCompleted)
    assert run.epochs == 0 and run.rows("out") == []
    assert run.folder().manifest().commits  # there was something to commit
    then_ms = run.now_ms()
    run.run(until=lambda: run.now_ms() > then_ms + 5)
    assert not [path for path in run.store.files if "/chk-" in path], "no sweep has come, so it deletes its own files"
    checkpoint, actions = run.master.trigger_checkpoint(run.now_ms())
    run.carry_out(actions)
    run.epochs_done(1)
    assert checkpoint == 2 and positions(run.folder()) <= set(run.numbers())
    assert run.run().numbers() == list(range(RECORDS))
    check_counts(run.rows("out"))


@pytest.mark.promise("D5")
def test_a_completed_savepoint_says_place_size_epoch_and_duration_and_leaves_no_other_files() -> None:
    run = Run(counting()).epochs_done(2)
    newest = run.epochs
    checkpoint = run.savepoint()
    (made,) = run.until(events.SavepointCompleted).noted(events.SavepointCompleted)
    assert isinstance(made, events.SavepointCompleted)
    head = run.folder().head()
    assert (made.name, made.checkpoint, made.epoch) == ("nightly", checkpoint, head.epoch)
    assert head.epoch == newest, "the newest epoch when it was triggered"
    assert made.place == run.folder().place and made.duration_ms > 0 and made.state_bytes == head.state_bytes > 0
    assert not head.stopped
    run.run()
    assert not [path for path in run.store.files if f"/chk-{checkpoint:07d}/" in path]


@pytest.mark.promise("D5", "D7")
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_moved_savepoint_starts_another_job_in_another_store_at_another_parallelism(parallelism: int) -> None:
    run = Run(counting()).epochs_done(2)
    run.savepoint()
    run.until(events.SavepointCompleted)
    read = positions(run.folder())
    assert 0 < len(read) < RECORDS
    new = begun_from(moved(run.folder()), counting(), parallelism).run()
    assert new.numbers() == sorted(set(range(RECORDS)) - read)  # the original job has published the others
    original = [row for row in run.run().rows("out") if row["n"] in read]
    check_counts([*original, *new.rows("out")])


@pytest.mark.promise("D5")
def test_a_job_that_begins_from_a_savepoint_does_not_publish_what_the_original_job_pre_committed() -> None:
    run = Run(counting(interval_ms=None))
    run.run(until=lambda: run.now_ms() > 30)
    run.savepoint()
    folder = run.until(events.SavepointCompleted).folder()
    pending = sum(committable.payload["rows"] for committable in folder.manifest().commits)
    new = begun_from(moved(folder), counting(), 2).run()
    assert pending and not positions(folder) & set(new.numbers())
    assert set(run.run().numbers()) >= positions(folder)


@pytest.mark.promise("D5")
def test_a_savepoint_asked_for_while_the_attempt_fails_is_reported_as_failed() -> None:
    def dying(split: int) -> list[Item]:
        items: list[Item] = [record(n) for n in range(split, RECORDS, 2)]
        return [*items[:20], Crash(), *items[20:]] if split == 0 else items

    run = Run(counting(items=dying))
    run.hold = "savepoint"
    run.run(until=lambda: run.master.phase is Phase.RUNNING)
    for slot in run.slots[1:]:
        slot.runtime.step = lambda: False  # type: ignore[method-assign]  # nobody acknowledges
    assert run.savepoint() == 1
    (failed,) = run.until(events.SavepointFailed).noted(events.SavepointFailed)
    assert isinstance(failed, events.SavepointFailed)
    assert "the job's attempt ended before it was complete" in failed.reason
    assert not run.folder().exists()


@pytest.mark.promise("D5")
def test_retention_keeps_the_files_of_a_savepoint_until_it_is_copied() -> None:
    run = Run(counting(interval_ms=4)).epochs_done(1)
    elsewhere = MemoryStore()
    run.master._savepoints._open_place = lambda place: elsewhere
    run.hold = "savepoint"
    checkpoint = run.savepoint(SavepointRequest("nightly", "/elsewhere"))
    run.epochs_done(6)  # three are kept, so the sweep has passed the savepoint's number
    assert [path for path in run.store.files if f"/chk-{checkpoint:07d}/" in path]
    run.let_go()
    run.until(events.SavepointCompleted)
    assert SavepointFolder(elsewhere).manifest().state_bytes


@pytest.mark.promise("D5")
def test_slots_write_the_state_of_a_savepoint_in_the_own_store_once_and_right_into_its_folder() -> None:
    run = Run(counting()).epochs_done(1)
    written: list[str] = []
    write, copy = run.store.write, run.store.copy_from
    run.store.write = lambda path, data: (written.append(path), write(path, data))[1]  # type: ignore[method-assign]
    run.store.copy_from = lambda *of: (written.append(of[0]), copy(*of))[1]  # type: ignore[method-assign]
    checkpoint = run.savepoint()
    run.until(events.SavepointCompleted)
    manifest = run.folder().manifest()
    state = [f"{run.paths.savepoint('nightly')}/{file.path}" for of in manifest.subtasks for file in of.files]
    assert state and [path for path in written if path.endswith(".arrow") and "/savepoints/" in path] == state
    assert not [path for path in written if f"/chk-{checkpoint:07d}/" in path and path.endswith(".arrow")]


@pytest.mark.promise("D4", "D5")
def test_state_that_a_slot_writes_after_its_savepoint_was_aborted_is_deleted_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its attempt ends while the upload goes on; then nobody acknowledges what it has written."""
    monkeypatch.setattr(savepoints, "LATE_WRITES_MS", 12.0)
    run = Run(counting(interval_ms=4)).epochs_done(1)
    checkpoint = run.savepoint()
    late = f"{run.master._savepoints.into(checkpoint)}/count.0.state.arrow"  # type: ignore[arg-type]
    run.carry_out(run.master._carry_out(run.master._running.coordinator.end_attempt("a test"), run.now_ms()))
    run.until(events.SavepointFailed).epochs_done(2)
    assert not [path for path in run.store.files if "/savepoints/" in path]
    run.store.write(late, b"written late")
    run.epochs_done(8)
    assert not [path for path in run.store.files if "/savepoints/" in path]


@pytest.mark.promise("D4", "D5", "D6")
@pytest.mark.parametrize("stop", [False, True])
def test_the_state_of_a_savepoint_that_failed_while_the_store_was_away_is_deleted_later(
    monkeypatch: pytest.MonkeyPatch, stop: bool
) -> None:
    """Neither could the savepoint be made, nor could its files be deleted then."""
    monkeypatch.setattr(savepoints, "LATE_WRITES_MS", 12.0)
    run = Run(counting(interval_ms=4)).epochs_done(1)
    with monkeypatch.context() as away:
        away.setattr(SavepointFolder, "_write_manifest" if stop else "exists", lambda *of: away_now())
        away.setattr(SavepointFolder, "_take_seal_away", lambda *of: away_now())
        if stop:
            run.stop(savepoint=SavepointRequest("nightly"))
        else:
            run.savepoint()
        run.until(events.SavepointFailed)
    assert [path for path in run.store.files if "/savepoints/" in path]
    run.epochs_done(run.master.stats.checkpoints_completed + 7)
    assert not [path for path in run.store.files if "/savepoints/" in path]


@pytest.mark.promise("D6", "C4")
@pytest.mark.parametrize("when", ["while they are copied", "behind its epoch"])
def test_the_files_of_a_stop_that_failed_while_the_store_was_away_are_deleted_later(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its slot dies while files are copied, or the savepoint can't be sealed. They can't be deleted either then."""
    monkeypatch.setattr(savepoints, "LATE_WRITES_MS", 12.0)
    run = Run(counting(interval_ms=4)).epochs_done(1)
    with monkeypatch.context() as away:
        if when == "behind its epoch":
            away.setattr(SavepointFolder, "_sealed", lambda *of: away_now())
        run.hold = "savepoint" if when == "while they are copied" else ""
        run.stop()
        if run.hold:
            run.run(until=lambda: bool(run.held))
            run.kill_slot()
        tried: list[object] = []
        away.setattr(SavepointFolder, "_take_seal_away", lambda *of: tried.append(of) or away_now())
        run.let_go()
        run.until(events.SavepointFailed, events.StopFailed).run(until=lambda: bool(tried))
    assert [path for path in run.store.files if "/savepoints/" in path]
    run.epochs_done(run.master.stats.checkpoints_completed + 7)
    assert not [path for path in run.store.files if "/savepoints/" in path]


class _Killed(BaseException):
    """The JobMaster is killed in this moment."""


@pytest.mark.promise("D5", "F2", "C4")
@pytest.mark.parametrize("moment", ["before its files are sealed", "right before its head"])
def test_what_a_killed_jobmaster_left_of_a_savepoint_is_completed_or_deleted_by_its_successor(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Its files are as large as the job's state. Nobody has to think of `weir gc` for that."""

    def killed(*of: object) -> bool:
        raise _Killed

    run = Run(counting()).epochs_done(1)
    with monkeypatch.context() as died, pytest.raises(_Killed):
        died.setattr(SavepointFolder, "_sealed" if moment.startswith("before") else "_made", killed)
        run.savepoint()
        run.run()
    assert any(path.endswith(".arrow") for path in run.folder().store.list("")) and not run.folder().exists()
    successor = Run(counting(), after=Begun(run.store, "successor")).epochs_done(2)
    successor.run(until=lambda: False)
    if moment.startswith("before"):
        assert [path for path in run.folder().store.list("") if not path.endswith(".seal")] == []
    else:
        done = begun_from(moved(run.folder()), counting(), 2)
        assert done.run().numbers() == sorted(set(range(RECORDS)) - positions(run.folder()))
    assert successor.numbers() == list(range(RECORDS))


@pytest.mark.promise("D5", "C4")
def test_a_jobmaster_that_could_not_end_the_savepoints_before_it_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(counting()).epochs_done(1)
    left = f"{run.paths.savepoint('half')}/{run.master._publisher.job_id}-0001-0001-0000009/count.0.arrow"
    run.store.write(left, b"state")
    successor = Run(counting(), after=Begun(run.store, "successor"))
    with monkeypatch.context() as away:
        away.setattr(SavepointFolder, "exists", lambda self: away_now())
        successor.epochs_done(2)
    assert left in run.store.files
    successor.run(until=lambda: successor.master.stats.checkpoints_completed >= 4)
    assert left not in run.store.files


@pytest.mark.promise("D6", "C4")
def test_the_files_of_a_stop_whose_epoch_is_not_published_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(counting(interval_ms=None))
    run.run(until=lambda: run.now_ms() > 30)
    run.hold = "manifest"
    run.stop()
    run.run(until=lambda: bool(run.held))
    assert any(path.endswith(".arrow") for path in run.folder().store.list("")), "its files are copied by now"
    with monkeypatch.context() as away:
        away.setattr(EpochLog, "write_manifest", lambda self, manifest: away_now())
        run.let_go()
        run.until(events.StopFailed)
    assert run.run().numbers() == list(range(RECORDS))
    assert not run.folder().store.list("")


def away_now() -> bool:
    raise StoreError("the store does not answer")


@pytest.mark.promise("D5")
def test_a_job_that_finishes_waits_until_a_savepoint_is_copied() -> None:
    run = Run(counting()).epochs_done(1)
    run.hold = "savepoint"
    run.savepoint()
    run.run(until=lambda: any(isinstance(e, events.Completed) and e.final for e in run.events))
    for _ in range(3):
        run.carry_out(run.master.on_tick(run.now_ms()))
    assert run.ended is None
    run.let_go()
    assert run.run().ended.outcome is Outcome.FINISHED and run.folder().exists()  # type: ignore[union-attr]


@pytest.mark.promise("D5")
def test_a_savepoint_whose_ledger_does_not_balance_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(counting()).epochs_done(1)
    checkpoint, manifest_of = run.savepoint(), Publisher.manifest_of

    def unbalanced(self: Publisher, completed: CompletedCheckpoint) -> tuple[Manifest, str]:
        manifest, broken = manifest_of(self, completed)
        return manifest, "sent 3, received 2" if completed.checkpoint == checkpoint else broken

    monkeypatch.setattr(Publisher, "manifest_of", unbalanced)
    (failed,) = run.until(events.SavepointFailed).noted(events.SavepointFailed)
    assert isinstance(failed, events.SavepointFailed) and "sent 3, received 2" in failed.reason
    assert run.run().numbers() == list(range(RECORDS)) and not run.folder().exists()
    assert not [path for path in run.store.files if "/savepoints/" in path]


def test_two_savepoints_are_not_written_to_one_place_at_a_time() -> None:
    run = Run(counting()).epochs_done(1)
    run.hold = "savepoint"
    run.savepoint()
    refused = run.savepoint()
    assert isinstance(refused, Refusal) and "choose another name" in refused.why


def test_a_savepoint_that_exists_is_told_and_the_job_goes_on() -> None:
    run = Run(counting()).epochs_done(1)
    run.savepoint()
    run.until(events.SavepointCompleted)
    run.savepoint()
    (failed,) = run.until(events.SavepointFailed).noted(events.SavepointFailed)
    assert isinstance(failed, events.SavepointFailed) and "already holds a savepoint" in failed.reason
    assert run.run().numbers() == list(range(RECORDS)) and run.restarts == 0
    writers = {path.split("/")[3] for path in run.store.files if "/savepoints/" in path and path.count("/") > 3}
    assert len(writers) == 1, "what slots wrote for the second one is deleted"


class Full(MemoryStore):
    """A disk that is full after some writes."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, path: str, data: bytes) -> None:
        self.room -= 1
        if self.room < 0:
            raise StoreError(f"can't write {path}: No space left on device")
        super().write(path, data)


def elsewhere(run: Run, store: Store) -> SavepointRequest:
    """A request for a savepoint in another store."""
    run.master._savepoints._open_place = lambda place: store
    return SavepointRequest("nightly", "/elsewhere/nightly")


@pytest.mark.promise("D5")
def test_the_folder_that_a_user_has_made_for_a_savepoint_stays_if_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SavepointFolder, "_write_manifest", lambda *of: away_now())
    run = Run(counting()).epochs_done(1)
    run.savepoint(SavepointRequest("nightly", str(tmp_path)))
    run.until(events.SavepointFailed).run()
    assert tmp_path.is_dir() and not list(tmp_path.rglob("*.*"))


@pytest.mark.promise("D5")
def test_a_savepoint_without_room_fails_and_leaves_nothing_and_the_job_goes_on() -> None:
    full = Full(room=2)
    run = Run(counting()).epochs_done(1)
    run.savepoint(elsewhere(run, full))
    (failed,) = run.until(events.SavepointFailed).noted(events.SavepointFailed)
    assert isinstance(failed, events.SavepointFailed) and "No space left on device" in failed.reason
    assert full.files == {}
    assert run.run().numbers() == list(range(RECORDS)) and run.restarts == 0


# --- a stop ---


@pytest.mark.promise("D6")
@pytest.mark.parametrize("savepoint", [None, NIGHTLY])
def test_a_stop_commits_its_epoch_and_the_next_start_goes_on_behind_it(savepoint: SavepointRequest | None) -> None:
    run = Run(counting()).epochs_done(2)
    assert run.stop(savepoint=savepoint) is None
    run.run()
    assert run.ended is not None and run.ended.outcome is Outcome.STOPPED
    assert f"behind epoch {run.epochs}" in run.ended.reason
    published = run.numbers()
    assert 0 < len(published) < RECORDS
    if savepoint is not None:
        head = run.folder().head()
        assert (head.epoch, head.stopped) == (run.epochs, True) and run.folder().place in run.ended.reason
        assert set(published) == positions(run.folder())
    after = Run(counting(), 3, run).run()
    assert after.numbers() == list(range(RECORDS))
    check_counts(after.rows("out"))


@pytest.mark.promise("D6", "D7")
def test_a_job_begins_elsewhere_from_the_savepoint_of_a_stop_and_nothing_is_lost_or_doubled() -> None:
    run = Run(counting()).epochs_done(2)
    run.stop()
    published = run.run().numbers()
    new = begun_from(moved(run.folder()), counting(), 3).run()
    assert sorted(published + new.numbers()) == list(range(RECORDS))
    check_counts([*run.rows("out"), *new.rows("out")])


@pytest.mark.promise("D6")
def test_a_drain_fires_all_windows_before_the_last_epoch() -> None:
    run = Run(windowed).epochs_done(2)
    assert run.rows("out") == []
    run.stop(drain=True)
    run.run()
    assert run.ended is not None and run.ended.outcome is Outcome.STOPPED and "drained" in run.ended.reason
    counted = sum(row["pv"] for row in run.rows("out"))
    assert counted == len(positions(run.folder())) > 0
    assert run.folder().manifest().drained


@pytest.mark.promise("D6")
def test_sources_are_drained_only_when_no_checkpoint_is_under_way() -> None:
    """The snapshot of such a checkpoint could hold windows that the drain has fired."""
    run = Run(windowed).epochs_done(1)
    run.carry_out(run.master.trigger_checkpoint(run.now_ms())[1])
    run.stop(drain=True, savepoint=None)
    coordinator = run.master.coordinator
    assert coordinator is not None and coordinator.pending
    stop = run.master._savepoints._stop
    assert stop is not None and not stop.draining
    assert isinstance(run.stop(), Refusal) and isinstance(run.savepoint(), Refusal)
    run.run(until=lambda: stop.draining)
    assert not coordinator.pending and not [e for e in run.events if isinstance(e, events.Aborted)]


@pytest.mark.promise("D6")
def test_a_drained_job_does_not_go_on_because_its_records_would_be_late() -> None:
    run = Run(windowed).epochs_done(2)
    run.stop(drain=True, savepoint=None)
    before = run.run().rows("out")
    after = Run(windowed, 2, run).run()
    assert after.ended is not None and after.ended.outcome is Outcome.STOPPED
    assert "it was drained in epoch" in after.ended.reason and after.rows("out") == before


@pytest.mark.promise("D6")
@pytest.mark.parametrize("drain", [False, True])
def test_a_stop_whose_savepoint_can_not_be_written_leaves_the_job_running_as_if_nothing_had_been_asked(
    drain: bool,
) -> None:
    run = Run(windowed).epochs_done(2)
    run.stop(drain, elsewhere(run, Full(room=0)))
    run.until(events.StopFailed)
    (failed,) = run.noted(events.StopFailed)
    assert isinstance(failed, events.StopFailed) and "No space left on device" in failed.reason
    assert run.noted(events.SavepointFailed)
    assert run.rows("out") == []  # nothing of the drain was published
    run.run()
    assert run.ended is not None and run.ended.outcome is Outcome.FINISHED
    assert sum(row["pv"] for row in run.rows("out")) == RECORDS
    assert all(times == 1 for times in Counter(row["key"] for row in run.rows("out")).values())


@pytest.mark.promise("D6")
def test_a_stop_that_fails_costs_no_restart_of_the_strategy() -> None:
    def never_restarted(env: StreamEnvironment) -> None:
        from engine.api import NoRestart

        counting()(env)
        env.set_restart_strategy(NoRestart())

    run = Run(never_restarted).epochs_done(1)
    run.stop(savepoint=elsewhere(run, Full(room=1)))
    run.until(events.StopFailed)
    assert run.run().numbers() == list(range(RECORDS))


@pytest.mark.promise("D6")
def test_a_savepoint_that_appears_during_the_stop_is_kept_and_the_message_names_the_epoch() -> None:
    run = Run(counting(interval_ms=None))
    run.run(until=lambda: run.now_ms() > 30)
    run.hold = "commit"
    run.stop()
    run.run(until=lambda: bool(run.held))
    other = Run(counting()).epochs_done(1)
    other.savepoint()
    theirs = other.until(events.SavepointCompleted).folder()
    place = run.folder().store
    for path in theirs.store.list(""):
        place.write(path, theirs.store.read(path))
    run.let_go()
    (failed,) = run.until(events.StopFailed).noted(events.StopFailed)
    assert isinstance(failed, events.StopFailed)
    assert f"epoch {run.epochs} is published and committed" in failed.reason
    assert "already holds a savepoint" in failed.reason
    assert run.folder().head() == theirs.head()
    assert run.run().numbers() == list(range(RECORDS))


@pytest.mark.promise("D6")
def test_a_savepoint_of_a_stop_that_the_store_makes_too_late_is_whole() -> None:
    sent: list[bytes] = []

    class Late(MemoryStore):
        def create(self, path: str, data: bytes) -> Created:
            if path.endswith(".seal"):
                return super().create(path, data)
            sent.append(data)
            return Created.UNKNOWN

    run, place = Run(counting()).epochs_done(1), Late()
    run.stop(savepoint=elsewhere(run, place))
    (failed,) = run.until(events.StopFailed).noted(events.StopFailed)
    assert isinstance(failed, events.StopFailed) and "does not say whether" in failed.reason
    assert run.run().numbers() == list(range(RECORDS))
    place.files["savepoint.json"] = sent[-1]
    read = positions(SavepointFolder(place))
    begun = begun_from(SavepointFolder(place), counting(), 2)
    assert begun.run().numbers() == sorted(set(range(RECORDS)) - read)


@pytest.mark.promise("D5", "D6")
@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("made", ["no", "at once", "too late"])
def test_a_savepoint_whose_last_step_the_store_did_not_answer_is_made_once_the_store_answers(
    made: str, stop: bool
) -> None:
    """The server was down for four seconds. No savepoint was made, and its files stayed as long as the JobMaster."""

    class Mute(MemoryStore):
        mute = True

        def create(self, path: str, data: bytes) -> Created:
            if path.endswith(".seal") or not self.mute:
                return super().create(path, data)
            sent.append(data)
            if made == "at once":
                super().create(path, data)
            return Created.UNKNOWN

    sent: list[bytes] = []
    run, place = Run(counting()).epochs_done(1), Mute()
    asked = elsewhere(run, place)
    if stop:
        run.stop(savepoint=asked)
    else:
        run.savepoint(asked)
    (failed,) = run.until(events.SavepointFailed).noted(events.SavepointFailed)
    assert isinstance(failed, events.SavepointFailed) and "does not say whether" in failed.reason
    assert failed.reason.endswith("It is made as soon as the store answers, if it does not exist")
    run.epochs_done(run.epochs + 1)
    if made == "too late":
        place.files["savepoint.json"] = sent[-1]
    place.mute = False
    run.epochs_done(run.epochs + 2)
    read = positions(SavepointFolder(place))
    begun = begun_from(SavepointFolder(place), counting(), 2)
    assert begun.run().numbers() == sorted(set(range(RECORDS)) - read)
    assert run.run().numbers() == list(range(RECORDS))


@pytest.mark.promise("D6")
def test_a_drained_job_whose_savepoint_is_not_made_ends_at_once_and_says_so() -> None:
    """Its windows have fired for good, in an epoch that is committed: it can't go on, and is not restarted for that."""

    class Headless(MemoryStore):
        def create(self, path: str, data: bytes) -> Created:
            if path.endswith(".seal"):
                return super().create(path, data)
            raise StoreError("no connection")

    run, place = Run(windowed).epochs_done(1), Headless()
    run.stop(drain=True, savepoint=elsewhere(run, place))
    run.run()
    assert run.ended is not None and run.ended.outcome is Outcome.STOPPED
    assert "drained" in run.ended.reason and "its savepoint could not be made: no connection" in run.ended.reason
    assert len(run.noted(events.SavepointFailed)) == 1
    assert run.noted(events.StopFailed, events.AttemptFailed) == []
    assert run.rows("out") and place.files == {}


@pytest.mark.promise("D6")
def test_while_a_job_is_being_stopped_nothing_else_is_triggered() -> None:
    run = Run(counting()).epochs_done(1)
    run.hold = "savepoint"
    run.stop()
    assert run.master.trigger_checkpoint(run.now_ms()) == (None, [])
    refused = run.savepoint(SavepointRequest("other"))
    assert isinstance(refused, Refusal) and "is being stopped already" in refused.why
    assert isinstance(run.stop(), Refusal)
    run.run(until=lambda: run.now_ms() > 500)
    assert run.epochs < 5 and run.ended is None


@pytest.mark.promise("D6")
def test_a_stop_fails_with_its_attempt_and_the_job_goes_on() -> None:
    run = Run(counting()).epochs_done(1)
    run.hold = "savepoint"
    run.stop()
    run.run(until=lambda: bool(run.held))
    run.kill_slot()
    assert run.noted(events.StopFailed) and run.noted(events.SavepointFailed)
    run.let_go()
    assert run.run().numbers() == list(range(RECORDS))
    assert run.ended is not None and run.ended.outcome is Outcome.FINISHED
    assert not run.folder().exists() and not run.folder().store.list("")


@pytest.mark.promise("D6")
def test_a_job_whose_slots_die_while_the_epoch_of_a_stop_is_published_still_stops() -> None:
    run = Run(counting(interval_ms=None))
    run.run(until=lambda: run.now_ms() > 30)
    run.hold = "commit"
    run.stop()
    run.run(until=lambda: bool(run.held))
    run.carry_out(run.master.on_slot_gone(run.slots[0].session, "killed", run.now_ms()))
    run.let_go()
    run.run()
    assert run.ended is not None and run.ended.outcome is Outcome.STOPPED
    assert run.folder().head().epoch == run.epochs


@pytest.mark.promise("D6", "D11")
def test_a_drained_epoch_that_a_sink_could_not_commit_is_committed_at_the_restore_and_the_job_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = TableCommitter.commit
    failing = [StoreError("the table is away")]

    def sometimes(self: TableCommitter, permit: Any, committables: Any) -> None:
        if committables and failing:
            raise failing.pop()
        commit(self, permit, committables)

    monkeypatch.setattr(TableCommitter, "commit", sometimes)
    run = Run(windowed).epochs_done(2)
    run.stop(drain=True)
    run.run()
    assert run.ended is not None and run.ended.outcome is Outcome.STOPPED
    (failed,) = run.noted(events.StopFailed)
    assert isinstance(failed, events.StopFailed) and f"epoch {run.epochs} exists" in failed.reason
    assert sum(row["pv"] for row in run.rows("out")) > 0


# --- what Flink's own tests expect ---


@pytest.mark.promise("D6")
def test_finished_sources_stay_finished_after_a_restore() -> None:
    short = lambda split: [record(n) for n in range(split, 10 if split == 0 else RECORDS, 2)]  # noqa: E731
    run = Run(counting(items=short))
    run.run(until=lambda: {0, 2, 4, 6, 8} <= set(run.numbers()))
    run.stop()
    published = run.run().numbers()
    new = begun_from(moved(run.folder()), counting(items=short), 2).run()
    assert not set(published) & set(new.numbers())
    assert sorted(published + new.numbers()) == sorted(record["n"] for split in (0, 1) for record in short(split))


@pytest.mark.promise("D8")
def test_state_that_no_operator_claims_is_refused_and_the_option_is_named() -> None:
    def without_state(env: StreamEnvironment) -> None:
        stream = env.from_source(ListSource([record(0)], [record(1)]), "n long, key string, ts long", uid="source")
        stream.sink_to(TableSink("out"), uid="out")

    run = Run(counting()).epochs_done(1)
    run.savepoint()
    folder = run.until(events.SavepointCompleted).folder()
    new = begun_from(moved(folder), without_state, 2)
    with pytest.raises(AssertionError, match="--allow-non-restored-state drops its state"):
        new.run()


@pytest.mark.promise("D11")
def test_a_late_notice_of_an_older_checkpoint_does_nothing() -> None:
    run = Run(counting())
    run.hold = "commit"
    run.run(until=lambda: bool(run.held))
    from engine.protocol.messages import NotifyComplete

    newest = run.held[0]
    run.let_go()
    run.epochs_done(3)
    for slot in run.slots:
        slot.runtime.on_control(NotifyComplete(run.master.attempt, 1))
    assert newest and run.run().numbers() == list(range(RECORDS))


@pytest.mark.promise("D5")
def test_the_folder_of_a_savepoint_is_never_replaced() -> None:
    run = Run(counting()).epochs_done(1)
    run.savepoint()
    folder = run.until(events.SavepointCompleted).folder()
    with pytest.raises(SavepointExists):
        folder.check_new()
