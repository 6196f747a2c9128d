"""A job in one thread that writes its history, and answers over HTTP, as the process of a JobMaster does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.api import FixedDelay, StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count
from engine.connectors.table import TableSink
from engine.host.launch import MasterLaunch
from engine.host.run_folder import RunFolder
from engine.jobmaster.actions import Action, Note
from engine.jobmaster.events import stamped
from engine.jobmaster.status import JobStatus, VertexStatus, describe, describe_vertex
from engine.observe.history import History
from engine.observe.timeline import Timeline
from engine.protocol.messages import Heartbeat
from engine.testing import Checkpoint, Crash, Item, ListSource, LocalRun

NAME = "test"


def view(app: str, second: int) -> dict[str, Any]:
    return {"app": app, "ts": second * 1000}


def story() -> list[Item]:
    """Two checkpoints, and a slot that dies after the first."""
    return [view("a", 1), Checkpoint(), view("b", 2), Crash(), view("a", 12), Checkpoint(), view("b", 25)]


def job(env: StreamEnvironment) -> None:
    env.set_restart_strategy(FixedDelay(attempts=5, delay_ms=10))
    views = env.from_source(ListSource(story()), "app string, ts long", uid="views")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    windows = views.assign_timestamps_and_watermarks(strategy).key_by("app").window(TumblingEventTimeWindows.of("10 s"))
    windows.aggregate(pv=count(), uid="pv").sink_to(TableSink("pv"), uid="out")


class AnsweringRun(LocalRun):
    def __init__(self, store: Path) -> None:
        self.timeline = Timeline()
        self.cancelled = False
        self.launch = MasterLaunch(path="tests.observe.answering:job", name=NAME, store=str(store), max_slots=4)
        self._history = History(store, NAME)
        folder = RunFolder(store, NAME)
        folder.prepare()
        folder.write_launch(self.launch)
        super().__init__(job, 2, {})

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Note):
                event = stamped(action.event, self.wall_ms(), self.master.attempt.generation)
                self.timeline.add(event)
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
        return describe(self.master, self.timeline.past, self.launch.path, "http://127.0.0.1:4040", self.wall_ms(), 0.0)

    def vertex(self, vertex_id: str) -> VertexStatus | None:
        known = [vertex.id for vertex in self.execution.graph.vertices]
        return describe_vertex(self.master, vertex_id, self.wall_ms()) if vertex_id in known else None

    def trigger(self) -> int | None:
        checkpoint, actions = self.master.trigger_checkpoint(self.now_ms())
        self.carry_out(actions)
        return checkpoint

    def cancel(self) -> bool:
        self.cancelled = True
        return True
