"""Runs the operator of a join as its subtasks do: rows go by key to subtasks, which can be restored at another number.

`Model` is the oracle: it knows of each row only whether it was late when it came, and joins by two nested loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa

from engine.api import DataStream, StreamEnvironment, WatermarkStrategy
from engine.protocol.signals import MIN_WATERMARK
from engine.runtime.operators.base import RestoredState
from engine.runtime.operators.joins.base import JoinOperator
from engine.snapshot.statefile import decode, encode
from engine.state.key_groups import key_groups, range_of, subtask_of
from engine.state.key_hash import hash_columns
from tests.fakes import Collected, context

Row = dict[str, Any]
Define = Callable[[DataStream, DataStream], DataStream]
LEFT = pa.schema([("k", pa.float64()), ("s", pa.string()), ("n", pa.int64()), ("_event_time", pa.int64())])
RIGHT = pa.schema([("s", pa.string()), ("id", pa.float64()), ("n", pa.int64()), ("_event_time", pa.int64())])
KEYS = (("k", "s"), ("id", "s"))


def define(env: StreamEnvironment, define: Define) -> DataStream:
    """Defines a join of two streams that are keyed by a number and a text."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("n")
    sides = (("left", "k double, s string, n long"), ("right", "s string, id double, n long"))
    streams = [env.from_elements([], schema, uid=uid) for uid, schema in sides]
    return define(*(stream.assign_timestamps_and_watermarks(strategy) for stream in streams))


@dataclass
class Subtasks:
    """All subtasks of the operator `uid` of a job, at some parallelism."""

    joined: Define
    operators: list[JoinOperator] = field(default_factory=list)
    emitted: list[Row] = field(default_factory=list)
    aside: list[tuple[str, Row]] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)

    def restore(self, parallelism: int) -> None:
        """Goes on from a snapshot of all subtasks at another parallelism, through the format of state files."""
        tables, inline = self.snapshot()
        before, self.operators = self.operators, []
        for subtask in range(parallelism):
            groups = range_of(subtask, parallelism, 128)
            mine = [(name, decode(data, groups)) for name, data in tables]
            state = RestoredState(inline, [(name, table) for name, table in mine if table.num_rows]) if before else None
            operator = self._built()
            operator.open(context("join", subtask, parallelism), state)
            assert not operator.context.counters, "nothing is late that a snapshot holds"
            self.operators.append(operator)

    def snapshot(self) -> tuple[list[tuple[str, bytes]], list[dict[str, Any]]]:
        tables, inline = [], []
        for operator in self.operators:
            taken = operator.snapshot(1)
            inline.append(taken.inline)
            for part in taken.parts:
                data = encode(part.table(), part.keys, operator.context.key_groups, 128)
                tables.append((part.name, data))
        return tables, inline

    def held(self) -> dict[str, list[Row]]:
        """Returns the rows of both sides in a snapshot."""
        held: dict[str, list[Row]] = {"left": [], "right": []}
        for operator in self.operators:
            for part in operator.snapshot(1).parts:
                held[part.name] += part.table().to_pylist()
        return held

    def _built(self) -> JoinOperator:
        env = StreamEnvironment()
        define(env, self.joined)
        operator = env.graph.nodes[-1].operator
        assert operator is not None
        built = operator.build()
        assert isinstance(built, JoinOperator)
        return built

    def rows(self, side: int, rows: Sequence[Row]) -> None:
        """Sends rows to their subtasks; one batch each."""
        batch = pa.RecordBatch.from_pylist(list(rows), schema=(LEFT, RIGHT)[side])
        to = subtasks_of(batch, KEYS[side], len(self.operators))
        for subtask, operator in enumerate(self.operators):
            part = batch.filter(pa.array([one == subtask for one in to], pa.bool_()))
            if part.num_rows:
                out = Collected()
                (operator.process, operator.process_second)[side](part, out)
                self._finish(operator, out)

    def watermark(self, subtask: int, timestamp_ms: int) -> None:
        out = Collected()
        self.operators[subtask].on_watermark(timestamp_ms, out)
        self._finish(self.operators[subtask], out)
        assert out.watermarks == [timestamp_ms] and out.events[-1] == timestamp_ms, "results come before it (B3)"

    def _finish(self, operator: JoinOperator, out: Collected) -> None:
        while operator.firing:
            assert operator.work(2, out)
        assert not operator.work(2, out)
        self.emitted += out.rows
        self.aside += [(name, row) for name, batch in out.aside for row in batch.to_pylist()]
        for name, value in operator.context.counters.items():
            self.counted[name] = self.counted.get(name, 0) + value
        operator.context.counters.clear()


def subtasks_of(batch: pa.RecordBatch, keys: Sequence[str], parallelism: int) -> list[int]:
    groups = key_groups(hash_columns([batch.column(key) for key in keys]), 128)
    return subtask_of(groups, parallelism, 128).tolist()


@dataclass
class Model:
    """What came in time, and how far the clock of each key is."""

    parallelism: int = 1
    rows: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    late: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    untimed: int = 0
    clocks: dict[int, int] = field(default_factory=dict)

    def add(self, side: int, rows: Sequence[Row], is_late: Callable[[int, int], bool]) -> None:
        """`is_late` says it of a time and a watermark."""
        for row in rows:
            time_ms = row["_event_time"]
            if time_ms is None:
                self.untimed += 1
            elif is_late(time_ms, self.clock(side, row)):
                self.late[side].append(row)
            else:
                self.rows[side].append({**row, "clock": self.clock(side, row)})

    def clock(self, side: int, row: Row) -> int:
        return self.clocks.get(self.group(side, row), MIN_WATERMARK)

    def group(self, side: int, row: Row) -> int:
        return group_of(row[("k", "id")[side]], row["s"])

    def watermark(self, subtask: int, timestamp_ms: int) -> None:
        for group in range_of(subtask, self.parallelism, 128):
            self.clocks[group] = max(self.clocks.get(group, MIN_WATERMARK), timestamp_ms)


@cache
def group_of(number: float | None, text: str | None) -> int:
    hashes = hash_columns([pa.array([number], pa.float64()), pa.array([text], pa.string())])
    return int(key_groups(hashes, 128)[0])


def same_key(left: Row, right: Row) -> bool:
    """Compares as Spark's joins do: null equals nothing, NaN equals NaN, 0.0 equals -0.0."""
    if None in (left["k"], left["s"], right["id"], right["s"]):
        return False
    both_nan = math.isnan(left["k"]) and math.isnan(right["id"])
    return left["s"] == right["s"] and (both_nan or left["k"] == right["id"])
