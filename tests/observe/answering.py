"""A job in one thread that writes its history, and answers over HTTP, as the process of a JobMaster does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.api import FixedDelay, StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count
from engine.connectors.table import TableSink
from engine.core.errors import StoreError
from engine.core.gates import Gate
from engine.host.launch import MasterLaunch
from engine.host.rehearsal_request import AskedRehearsal, RehearsalPhase, RehearsalStatus
from engine.host.run_folder import RunFolder
from engine.host.upgrade_record import UpgradeRecord, UpgradeStatus
from engine.host.upgrade_request import AskedUpgrade
from engine.jobmaster.actions import Action, Note
from engine.jobmaster.collecting import Collection, collect
from engine.jobmaster.events import stamped
from engine.jobmaster.savepoints import Refusal, check_new_savepoint
from engine.jobmaster.status import JobStatus, StandbyStatus, VertexStatus, describe, describe_vertex
from engine.observe.gate_routes import GateStatus
from engine.observe.history import History
from engine.observe.savepoints import SavepointRecord, SavepointRecords, with_place, with_store
from engine.observe.timeline import Timeline
from engine.process.from_savepoint import delete_savepoint
from engine.protocol.gate import Ruling
from engine.protocol.messages import Heartbeat
from engine.protocol.savepoint import SavepointRequest, StopRequest
from engine.protocol.upgrading import Phase, Progress
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.query import StateOfKey, look_up
from engine.store.places import open_place
from engine.testing import Checkpoint, Crash, Item, ListSource, LocalRun

NAME = "test"


def view(app: str, second: int) -> dict[str, Any]:
    return {"app": app, "ts": second * 1000}


def story() -> list[Item]:
    """Two checkpoints, and a slot that dies after the first."""
    return [view("a", 1), Checkpoint(), view("b", 2), Crash(), view("a", 12), Checkpoint(), view("b", 25)]


def long_story() -> list[Item]:
    """One checkpoint, and many records behind it."""
    return [view("a", 1), view("b", 2), Checkpoint(), *(view("ab"[second % 2], 3) for second in range(300))]


def long_job(env: StreamEnvironment) -> None:
    _define(env, long_story())


def job(env: StreamEnvironment) -> None:
    _define(env, story())


def gated_job(env: StreamEnvironment) -> None:
    """The gate refuses every window with a single record."""
    _define(env, story(), Gate.sql("pv >= 2"))


def _define(env: StreamEnvironment, items: list[Item], gate: Gate | None = None) -> None:
    env.set_restart_strategy(FixedDelay(attempts=5, delay_ms=10))
    views = env.from_source(ListSource(items), "app string, ts long", uid="views")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    windows = views.assign_timestamps_and_watermarks(strategy).key_by("app").window(TumblingEventTimeWindows.of("10 s"))
    windows.aggregate(pv=count(), uid="pv").sink_to(TableSink("pv", gate=gate), uid="out")


class AnsweringRun(LocalRun):
    """`after`: what the run goes on from; a store on disk, so that the job's files are where its history is."""

    def __init__(
        self, store: Path, job: Callable[[StreamEnvironment], None] = job, after: LocalRun | None = None
    ) -> None:
        self.timeline = Timeline()
        self.savepoints = SavepointRecords()
        self.cancelled = False
        self.full = False
        self.asked_upgrades: list[AskedUpgrade] = []
        self.asked_rehearsals: list[AskedRehearsal] = []
        self.launch = MasterLaunch(path="tests.observe.answering:job", name=NAME, store=str(store), max_slots=4)
        self._history = History(store, NAME)
        folder = RunFolder(store, NAME)
        folder.prepare()
        folder.write_launch(self.launch)
        super().__init__(job, 2, {}, after)

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Note):
                event = stamped(action.event, self.wall_ms(), self.master.attempt.generation)
                self.timeline.add(event)
                self.savepoints.add(event)
                self._history.append(event)
        super().carry_out(actions)

    def beat(self) -> None:
        """As each slot does, four times a second."""
        for slot in self.slots:
            self.master.on_message(slot.session, Heartbeat(slot.runtime.totals()), self.now_ms())

    # --- what HTTP asks for ---

    def ask(self, question: Callable[[], Any]) -> Any:
        return question()

    decide = ask

    def status(self) -> JobStatus:
        ui, past = "http://127.0.0.1:4040", self.timeline.past
        status = describe(self.master, past, self.launch.path, ui, self.wall_ms(), 0.0)
        return msgspec.structs.replace(status, standby=StandbyStatus(ready=True, doing="ready for 40 s"))

    def rule(self, checkpoint: int, ruling: Ruling) -> Refusal | None:
        refusal, actions = self.master.rule(checkpoint, ruling, self.now_ms())
        self.carry_out(actions)
        return refusal

    def gate(self) -> GateStatus:
        return GateStatus(self.master.held, self.master.verdicts)

    def vertex(self, vertex_id: str) -> VertexStatus | None:
        known = [vertex.id for vertex in self.execution.graph.vertices]
        return describe_vertex(self.master, vertex_id, self.wall_ms()) if vertex_id in known else None

    def upgrade(self) -> UpgradeStatus | None:
        progress = Progress(Phase.BACK, 7, "the new version failed: no")
        return UpgradeRecord(
            id="1f",
            progress=progress,
            old=self.launch,
            new=self.launch,
            back=self.launch,
            savepoint="upgrade-1f",
            by="cli",
            began_ms=self.wall_ms(),
            changed_ms=self.wall_ms(),
        ).status

    def request_upgrade(self, asked: AskedUpgrade) -> str | Refusal:
        self.asked_upgrades.append(asked)
        return "1f" if len(self.asked_upgrades) == 1 else Refusal("another upgrade of job 'test' is under way")

    def rehearsal(self) -> RehearsalStatus | None:
        return RehearsalStatus(
            id="2e",
            phase=RehearsalPhase.REHEARSING,
            old=self.launch.path,
            new="job:v2",
            checkpoints=5,
            by="http",
            began_ms=self.wall_ms(),
            changed_ms=self.wall_ms(),
            doing="checkpoint 3 of 5",
        )

    def request_rehearsal(self, asked: AskedRehearsal) -> str | Refusal:
        self.asked_rehearsals.append(asked)
        return "2e" if len(self.asked_rehearsals) == 1 else Refusal("another rehearsal of job 'test' is under way")

    def look_up(self, uid: str, key: Sequence[str]) -> StateOfKey | None:
        newest = self.master.newest
        return look_up(EpochLog(self.store, self.paths), newest, uid, key) if newest is not None else None

    def trigger(self) -> int | None:
        checkpoint, actions = self.master.trigger_checkpoint(self.now_ms())
        self.carry_out(actions)
        return checkpoint

    def collect(self, dry_run: bool) -> Collection:
        return collect(self.store, self.paths.job, dry_run=dry_run)

    def take_savepoint(self, request: SavepointRequest) -> int | Refusal:
        taken, actions = self.master.trigger_savepoint(request, self.now_ms())
        self.carry_out(actions)
        return taken

    def stop_job(self, request: StopRequest) -> Refusal | None:
        refusal, actions = self.master.stop(request, self.now_ms())
        self.carry_out(actions)
        return refusal

    def check_savepoint(self, request: SavepointRequest) -> None:
        check_new_savepoint(EpochLog(self.store, self.paths), request, open_place)

    def list_savepoints(self, known: list[SavepointRecord]) -> list[SavepointRecord]:
        return with_store(known, self.store, self.paths, open_place)

    def want_stopped(self) -> None:
        if self.full:
            raise StoreError("job 'numbers' can't be cancelled: desired.json can't be written")

    def look_at_savepoint(self, known: SavepointRecord) -> SavepointRecord:
        return with_place(known, self.store, self.paths, open_place)

    def delete_savepoint(self, place: str) -> None:
        delete_savepoint(self.launch.store, place)

    def cancel(self) -> bool:
        self.cancelled = True
        return True
