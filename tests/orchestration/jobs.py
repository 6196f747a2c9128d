"""A spec, and the files of a job as a JobMaster leaves them, without running one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dagster as dg
import msgspec

from engine.host.launch import MasterLaunch
from engine.host.run_folder import LastHeartbeat, RunFolder, SupervisorSign
from engine.protocol.remedy import Stage
from orchestration.factory import build_stream_definitions
from orchestration.resources import WeirStore, batch_spark
from orchestration.spec import StreamSpec
from tests.seen import completed

NUMBERS = StreamSpec(
    job="numbers",
    path="tests.cluster.jobs:endless",
    description="Sums of numbers.",
    owners=("team:tests",),
    checkpoint_cron="* * * * *",
)


def definitions(store: Path, spec: StreamSpec = NUMBERS) -> dg.Definitions:
    shared = dg.Definitions(
        resources={"weir": WeirStore(path=str(store)), "pyspark": batch_spark()}, executor=dg.in_process_executor
    )
    return dg.Definitions.merge(build_stream_definitions(spec), shared)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class FakeJob:
    """Writes the files of a job by hand."""

    def __init__(self, store: Path, name: str = "numbers") -> None:
        self.store = store
        self.folder = RunFolder(store, name)
        self.folder.prepare()
        self.launch = MasterLaunch(
            path="tests.cluster.jobs:endless",
            name=name,
            params={"rate": "7"},
            parallelism=3,
            store=str(store),
            max_slots=4,
        )
        self.history = store / name / "history" / "events.jsonl"
        self.history.parent.mkdir(parents=True, exist_ok=True)

    def wanted(self) -> None:
        self.folder.write_launch(self.launch)
        self.folder.want_running(self.launch, "cli")

    def beats(self, age_s: float = 0.0, phase: str = "running") -> None:
        self.folder.write_heartbeat(LastHeartbeat(now_ms() - int(age_s * 1000), 1, phase))

    def supervised(self, stage: Stage | None, number: int, age_s: float = 0.0, launch_id: str = "") -> None:
        self.folder.write_supervisor(SupervisorSign(launch_id, number, now_ms() - int(age_s * 1000), stage, 80))

    def completes(self, checkpoint: int, read: int, committed: int, at_ms: int | None = None, **over: Any) -> None:
        """Notes a checkpoint, in a minute of its own long ago unless `at_ms` is given."""
        ledger = {"source:a": read, "sink:out": committed, "sent:x": 1, "digest:out": 99}
        at_ms = checkpoint * 60_000 if at_ms is None else at_ms
        event = completed(checkpoint, ledger, at_ms=at_ms, completed_at_ms=at_ms, **over)
        self.writes(msgspec.json.encode(event).decode() + "\n")

    def writes(self, text: str) -> None:
        with self.history.open("a") as file:
            file.write(text)


class Ticker:
    """Evaluates a sensor as the daemon does: stores its events, and keeps its cursor."""

    def __init__(
        self, store: Path, instance: dg.DagsterInstance, sensor: str = "numbers_watch", spec: StreamSpec = NUMBERS
    ) -> None:
        self._repository = definitions(store, spec).get_repository_def()
        self._sensor = self._repository.get_sensor_def(sensor)
        self._instance = instance
        self._weir = WeirStore(path=str(store))
        self.cursor: str | None = None

    def tick(self, *, keep_cursor: bool = True) -> Any:
        with dg.build_sensor_context(
            self._instance, cursor=self.cursor, repository_def=self._repository, resources={"weir": self._weir}
        ) as context:
            result = self._sensor.evaluate_tick(context)
        for request in result.dynamic_partitions_requests or ():
            self._instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        for event in result.asset_events:
            self._instance.report_runless_asset_event(event)
        if keep_cursor:
            self.cursor = result.cursor
        return result
