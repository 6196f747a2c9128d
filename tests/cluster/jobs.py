"""Jobs for the tests on Spark. Slots import this module, so it imports nothing heavy."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from engine.api import (
    BroadcastContext,
    CheckpointingMode,
    DataStream,
    FixedDelay,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    MapStateDescriptor,
    NoRestart,
    ProcessContext,
    ReadOnlyBroadcastContext,
    RuntimeContext,
    StreamEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
    total,
)
from engine.connectors.delta import DeltaSink
from engine.connectors.generator import Columns, GeneratorSource
from engine.connectors.iceberg import IcebergSink
from engine.connectors.postgres import PostgresSink
from engine.connectors.table import TableSink
from engine.core.gates import Gate
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.core.sinks import Committer, Guarantee, NothingToCommit, Piece, Sink, SinkWriter, WriterContext
from tests.cluster.every_kind import every_kind as every_kind
from tests.cluster.families import families as families

KEYS = 100
EVENT_RATE = 10_000
SCHEMA = "key long, value long, ts timestamp"


def make(n: np.ndarray) -> Columns:
    return {"key": n * 7919 % KEYS, "value": n % 1000, "ts": n * 1_000_000 // EVENT_RATE}


def _source(env: StreamEnvironment, rows: int, rate: int) -> DataStream:
    rows = env.params.get("rows", rows)
    rate = env.params.get("rate", rate)
    return env.from_source(GeneratorSource(make, 2, rows or None, rate or None), SCHEMA, uid="numbers")


def _windows(stream: DataStream, sink: Sink) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    keyed = stream.assign_timestamps_and_watermarks(strategy).key_by("key")
    windows = keyed.window(TumblingEventTimeWindows.of("1 s"))
    windows.aggregate(rows=count(), sum=total("value"), uid="sums").sink_to(sink, uid="out")


def windows(env: StreamEnvironment) -> None:
    env.enable_checkpointing("300 ms")
    env.set_restart_strategy(FixedDelay(attempts=20, delay_ms=100))
    _windows(_source(env, rows=600_000, rate=100_000), TableSink("sums"))


def endless(env: StreamEnvironment) -> None:
    env.enable_checkpointing(env.params.get("interval", "300 ms"))
    _windows(_source(env, rows=0, rate=20_000), TableSink("sums"))


def chatty(env: StreamEnvironment) -> None:
    """Runs without end; its map prints and logs at times, and its results are printed."""
    env.enable_checkpointing("300 ms")
    env.set_restart_strategy(FixedDelay(attempts=20, delay_ms=100))

    def speak(row: dict[str, Any]) -> dict[str, Any]:
        if row["value"] == 500:
            print(f"printed {row['key']}")
            logging.getLogger("chatty").info("logged %d", row["key"])
        return row

    _source(env, rows=0, rate=4_000).map(speak).filter(lambda row: row["value"] == 500).print(uid="shown")


class RunningTotal(KeyedProcessFunction):
    """Emits each record with the sum of its key so far."""

    def open(self, context: RuntimeContext) -> None:
        self._sum = context.get_state(ValueStateDescriptor("sum", pa.int64()))

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[dict[str, Any]]:
        new = (self._sum.value() or 0) + value["value"]
        self._sum.update(new)
        yield {"key": value["key"], "value": value["value"], "sum": new}


def running_totals(env: StreamEnvironment) -> None:
    """Uses the row lane: a map, a keyed exchange of single records, a process function with state."""
    env.enable_checkpointing("300 ms")
    env.set_restart_strategy(FixedDelay(attempts=20, delay_ms=100))
    doubled = _source(env, rows=60_000, rate=12_000).map(lambda row: {**row, "value": row["value"] * 2})
    totals = doubled.key_by("key").process(RunningTotal(), uid="totals", schema="key long, value long, sum long")
    totals.sink_to(TableSink("totals"), uid="out")


def gated(env: StreamEnvironment) -> None:
    """Two tables of the same records: the gate of one holds the epoch with record 12,345, that of the other splits."""
    env.enable_checkpointing("300 ms")
    env.set_restart_strategy(FixedDelay(attempts=20, delay_ms=100))
    numbers = _source(env, rows=30_000, rate=10_000)
    numbers.sink_to(TableSink("held", gate=Gate.judge("tests.cluster.judges:NotThatOne", timeout="3 min")), uid="held")
    split = Gate.sql("value <> 999", on_fail="dead_letter", timeout="3 min")
    numbers.sink_to(TableSink("split", gate=split), uid="split")


class Laboured(RunningTotal):
    """Takes a millisecond for each record, as long as a file exists, without using the processor."""

    def __init__(self, gate: str) -> None:
        self._gate = gate

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[dict[str, Any]]:
        if Path(self._gate).exists():
            time.sleep(0.001)
        return super().process_element(value, context)


def loaded(env: StreamEnvironment) -> None:
    """Runs without end; as long as a file exists, it gets more records than two subtasks of its function can take."""
    env.enable_checkpointing("300 ms")
    laboured = Laboured(env.params.get("gate", ""))
    keyed = _source(env, rows=0, rate=2_000).key_by("key")
    totals = keyed.process(laboured, uid="totals", schema="key long, value long, sum long")
    totals.sink_to(TableSink("totals"), uid="out")


PRICES = MapStateDescriptor("prices", pa.int64(), pa.int64())


class Priced(KeyedBroadcastProcessFunction):
    """Numbers the records of each key, and the prices that each subtask knows."""

    def open(self, context: RuntimeContext) -> None:
        self._index = context.subtask_index
        self._seen = context.get_state(ValueStateDescriptor("seen", pa.int64()))

    def process_element(self, value: dict[str, Any], context: ReadOnlyBroadcastContext) -> Iterable[dict[str, Any]]:
        seen = (self._seen.value() or 0) + 1
        self._seen.update(seen)
        yield {"key": value["key"], "subtask": -1, "number": seen}

    def process_broadcast_element(self, value: dict[str, Any], context: BroadcastContext) -> Iterable[dict[str, Any]]:
        prices = context.get_broadcast_state(PRICES)
        prices.put(value["item"], value["item"] * 100)
        yield {"key": value["item"], "subtask": self._index, "number": len(prices)}


def priced(env: StreamEnvironment) -> None:
    """Has two inputs: a keyed stream, and a broadcast stream."""
    env.enable_checkpointing("300 ms")
    env.set_restart_strategy(FixedDelay(attempts=20, delay_ms=100))
    changes = GeneratorSource(lambda n: {"item": n}, 2, rows=500, rate=100)
    prices = env.from_source(changes, "item long", uid="prices")
    connected = _source(env, rows=60_000, rate=12_000).key_by("key").connect(prices.broadcast(PRICES))
    numbered = connected.process(Priced(), uid="priced", schema="key long, subtask long, number long")
    numbered.sink_to(TableSink("priced"), uid="out")


def raises(env: StreamEnvironment) -> None:
    """Has a user's function that always fails at a certain record."""
    env.enable_checkpointing("300 ms")
    env.set_restart_strategy(FixedDelay(attempts=20, delay_ms=50))
    broken = Path(env.params.get("broken", "/nowhere", "the function fails as long as this file exists"))

    def check(row: dict[str, Any]) -> dict[str, Any]:
        if row["value"] == 777 and broken.exists():
            raise ZeroDivisionError("value 777 is not allowed")
        return row

    _source(env, rows=20_000, rate=0).map(check).sink_to(TableSink("rows"), uid="out")


def wrong_schema(env: StreamEnvironment) -> None:
    """Has a source whose records do not have the declared schema."""
    env.enable_checkpointing("300 ms")
    env.set_restart_strategy(FixedDelay(attempts=20, delay_ms=50))
    source = GeneratorSource(make, 2, 1000)
    env.from_source(source, "key long, amount long, ts timestamp", uid="numbers").sink_to(TableSink("rows"), uid="out")


def never_built(env: StreamEnvironment) -> None:
    Path(env.params.get("note", "")).touch()
    time.sleep(600)


def raises_while_built(env: StreamEnvironment) -> None:
    raise RuntimeError("no configuration found")


class StuckSink(Sink):
    """Buffers rows, and persists none of them as long as a file exists."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, gate: str) -> None:
        self._gate = gate

    def writer(self, context: WriterContext) -> SinkWriter:
        return _StuckWriter(self._gate)

    def committer(self, store: Store, paths: JobPaths) -> Committer:
        return NothingToCommit()


class _StuckPiece(Piece):
    def __init__(self, gate: str, size: int) -> None:
        self._gate = gate
        self.size = size

    def persist(self) -> dict[str, Any]:
        while Path(self._gate).exists():
            time.sleep(0.05)
        return {}


class _StuckWriter(SinkWriter):
    def __init__(self, gate: str) -> None:
        self._gate = gate
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def begin(self) -> None:
        self._batches, self._bytes = [], 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._bytes += 50 * batch.nbytes  # back pressure begins at 64 MiB: counting more bytes makes the test quick

    def pre_commit(self) -> Piece | None:
        return _StuckPiece(self._gate, self._bytes) if self._bytes else None

    @property
    def buffered_bytes(self) -> int:
        return self._bytes


def stuck(env: StreamEnvironment) -> None:
    """Sends records as fast as possible across a keyed exchange into a sink that can be stuck."""
    source = GeneratorSource(make, 2, None, None)
    keyed = env.from_source(source, SCHEMA, uid="numbers").key_by("key")
    keyed.process(PassOn(), uid="pass").sink_to(StuckSink(env.params.get("gate", "")), uid="out")


class PassOn(KeyedProcessFunction):
    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[dict[str, Any]]:
        return (value,)


def at_least_once(env: StreamEnvironment) -> None:
    env.enable_checkpointing("300 ms", mode=CheckpointingMode.AT_LEAST_ONCE)
    env.set_restart_strategy(FixedDelay(attempts=20, delay_ms=100))
    _windows(_source(env, rows=300_000, rate=100_000), TableSink("sums"))


class Hoarding(MapFunction):
    """Keeps more memory with every record."""

    def open(self, context: RuntimeContext) -> None:
        self._kept: list[bytes] = []

    def map(self, value: dict[str, Any]) -> dict[str, Any]:
        self._kept.append(bytes(50_000))
        return value


def hoarding(env: StreamEnvironment) -> None:
    env.set_restart_strategy(NoRestart())
    _source(env, rows=0, rate=20_000).map(Hoarding()).sink_to(TableSink("out"), uid="out")


def kafka(env: StreamEnvironment) -> None:
    """Copies a topic to another one, through an exchange."""
    from engine.connectors.kafka import KafkaSink, KafkaSource

    env.enable_checkpointing("300 ms")
    servers = env.params.get("servers", "")
    numbers = env.from_source(KafkaSource(env.params.get("read", ""), servers=servers), "n long", uid="in")
    numbers.rebalance().sink_to(KafkaSink(env.params.get("write", ""), servers=servers, key="n"), uid="out")


def outside(env: StreamEnvironment) -> None:
    """Writes the same records to a Delta table, an Iceberg table and a table of PostgreSQL."""
    env.enable_checkpointing("500 ms")
    folder = env.params.get("folder", "/")
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    numbers = _source(env, 100_000, 10_000)
    numbers.sink_to(DeltaSink(f"{folder}/delta"), uid="delta")
    numbers.sink_to(IcebergSink("weir.numbers", "default", catalog), uid="iceberg")
    numbers.sink_to(PostgresSink(env.params.get("dsn", ""), "numbers"), uid="postgres")
