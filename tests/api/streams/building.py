"""Small streams for tests of the API, and a way to run their last operator on one batch."""

from __future__ import annotations

import pyarrow as pa

from engine.api import DataStream, StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy
from engine.runtime.operators.base import Operator
from tests.fakes import Collected, context

VIEWS = "app_id string, user_id long, bytes long, ts timestamp"
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamps("ts")
TEN_SECONDS = TumblingEventTimeWindows.of("10 s")


def views(schema: pa.Schema | str = VIEWS, env: StreamEnvironment | None = None) -> DataStream:
    return (env or StreamEnvironment()).from_elements([], schema, uid="views")


def timed(schema: pa.Schema | str = VIEWS) -> DataStream:
    return views(schema).assign_timestamps_and_watermarks(STRATEGY)


def operator(stream: DataStream) -> Operator:
    """The last operator of a stream, opened."""
    spec = stream._env.graph.nodes[stream._node].operator
    assert spec is not None
    built = spec.build()
    built.open(context(spec.uid), None)
    return built


def run(stream: DataStream, batch: pa.RecordBatch) -> pa.Table:
    out = Collected()
    operator(stream).process(batch, out)
    return pa.Table.from_batches(out.events, stream.schema)
