"""The subtasks of one window operator with functions, as the engine drives them; a restore may change their number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from engine.api import (
    DataStream,
    KeyedStream,
    ProcessWindowFunction,
    StreamEnvironment,
    TimeWindow,
    WatermarkStrategy,
    WindowContext,
)
from engine.runtime.operators.base import Operator, OperatorSnapshot, RestoredState
from engine.runtime.operators.windowed_functions import WindowOperator
from engine.snapshot.statefile import decode, encode
from engine.state.key_groups import key_groups, range_of, subtask_of
from engine.state.key_hash import hash_columns
from tests.fakes import Collected, FakeClock, context

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64()), ("ts", pa.int64()), ("_event_time", pa.int64())])
FIELDS = "k string, x long, ts long"
RESULT = "k string, start long, end long, xs array<long>"
Define = Callable[[KeyedStream], DataStream]
"""Adds the window operator behind a keyed stream with the fields k, x and ts."""


class Collect(ProcessWindowFunction):
    """Emits all values of a window, sorted, with nulls last."""

    def process(self, key: Any, context: WindowContext, elements: Any) -> Any:
        window = context.window()
        start, end = (window.start, window.end) if isinstance(window, TimeWindow) else (0, 0)
        xs = sorted((element["x"] for element in elements), key=lambda x: (x is None, x or 0))
        yield {"k": key, "start": start, "end": end, "xs": xs}


@dataclass(frozen=True)
class Build:
    """Makes the operator of a subtask."""

    operator: Callable[[], Operator]


def built(define: Define) -> Build:
    env = StreamEnvironment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    stream = env.from_elements([], FIELDS).assign_timestamps_and_watermarks(strategy)
    spec = env.graph.nodes[define(stream.key_by("k"))._node].operator
    assert spec is not None
    return Build(spec.build)


class Subtasks:
    def __init__(
        self,
        define: Define | Build,
        parallelism: int = 1,
        snapshots: Sequence[OperatorSnapshot] = (),
        clock: FakeClock | None = None,
        max_rows: int = 64,
    ) -> None:
        self.out = Collected()
        self.late = self.untimed = 0
        self.clock = clock or FakeClock(wall_ms=0)
        self.operators: list[WindowOperator] = []
        self._build = build = define if isinstance(define, Build) else built(define)
        self._max_rows = max_rows
        self._contexts = []
        for index in range(parallelism):
            operator = build.operator()
            assert isinstance(operator, WindowOperator)
            groups = range_of(index, parallelism, 128)
            tables = [
                (part.name, decode(encode(part.table(), part.keys, range_of(before, len(snapshots), 128), 128), groups))
                for before, snapshot in enumerate(snapshots)
                for part in snapshot.parts
            ]
            restored = RestoredState([s.inline for s in snapshots], [(n, t) for n, t in tables if t.num_rows])
            self._contexts.append(context("w", index, parallelism, clock=self.clock))
            operator.open(self._contexts[-1], restored if snapshots else None)
            self.operators.append(operator)

    def of(self, key: str | None) -> int:
        """Returns the subtask of a key."""
        (group,) = key_groups(hash_columns([pa.array([key], pa.string())]), 128).tolist()
        return subtask_of(group, len(self.operators), 128)

    def row(self, key: str | None, x: int | None, ts: int | None) -> list[dict[str, Any]]:
        """Processes a record, and returns the results that it has."""
        rows = pa.RecordBatch.from_pylist([{"k": key, "x": x, "ts": ts, "_event_time": ts}], schema=SCHEMA)
        before = len(self.out.rows)
        self.operators[self.of(key)].process(rows, self.out)
        return self.out.rows[before:]

    def watermark(self, timestamp_ms: int, subtask: int | None = None) -> list[dict[str, Any]]:
        """Moves event time of all subtasks, or of one, and returns what fires; the watermark comes behind it (B3)."""
        fired = len(self.out.rows)
        for operator in self.operators if subtask is None else [self.operators[subtask]]:
            before = len(self.out.watermarks)
            operator.on_watermark(timestamp_ms, self.out)
            while operator.firing:
                assert len(self.out.watermarks) == before, "the watermark passed before its windows"
                operator.work(self._max_rows, self.out)
            assert self.out.events[-1] == timestamp_ms
        return self.out.rows[fired:]

    def tick(self, duration_ms: int) -> list[dict[str, Any]]:
        """Lets time pass, and returns what fires by the clock."""
        fired = len(self.out.rows)
        for _ in range(duration_ms):
            self.clock.pass_ms(1)
            for operator in self.operators:
                while operator.work(self._max_rows, self.out):
                    pass
        return self.out.rows[fired:]

    def count(self, counter: str) -> int:
        return sum(of.counters.get(f"{counter}:w", 0) for of in self._contexts)

    def rescaled(self, parallelism: int, define: Define | None = None) -> Subtasks:
        snapshots = [operator.snapshot(1) for operator in self.operators]
        kept = [snapshot for snapshot in snapshots if snapshot is not None]
        return Subtasks(define or self._build, parallelism, kept, self.clock, self._max_rows)

    def state(self) -> dict[str, int]:
        """Returns the rows of each part of the snapshot that is not empty."""
        rows: dict[str, int] = {}
        for operator in self.operators:
            snapshot = operator.snapshot(1)
            for part in snapshot.parts if snapshot is not None else ():
                rows[part.name] = rows.get(part.name, 0) + part.table().num_rows
        return {name: count for name, count in rows.items() if count}
