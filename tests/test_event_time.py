"""Event time as a job assigns it: one watermark per split whatever the order of statements, and no impossible times.

Topology: one subtask reads three splits, of which each is a minute of event time ahead of the one before, and windows
of ten seconds follow. Checks: no record is late, since each split is in order.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from engine.api import DataStream, StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count
from engine.connectors.table import TableSink
from engine.core.errors import BadEventTime
from engine.core.event_time import event_times
from engine.testing import Checkpoint, Crash, JobFailed, ListSource, run

STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
SECONDS = range(0, 40, 4)


def source(*faults: Any) -> ListSource:
    splits = [[{"k": "a", "ts": 1000 * (60 * split + second)} for second in SECONDS] for split in range(3)]
    return ListSource([*splits[0][:5], *faults, *splits[0][5:]], *splits[1:])


def windows(stream: DataStream) -> None:
    timed = stream.assign_timestamps_and_watermarks(STRATEGY)
    counted = timed.key_by("k").window(TumblingEventTimeWindows.of("10 s")).aggregate(n=count(), uid="windows")
    counted.sink_to(TableSink("windows"), uid="windows out")


def others(stream: DataStream) -> None:
    """What else may follow the source: operators that pass batches on, keep state or look at all columns."""
    stream.filter(lambda row: True).key_by("k").sum("ts", uid="sums").sink_to(TableSink("sums"), uid="sums out")
    stream.map_batches(_as_it_is).sink_to(TableSink("batches"), uid="batches out")
    stream.sink_to(TableSink("rows"), uid="rows out")


def _as_it_is(batch: Any) -> Any:
    assert batch.schema.names == ["k", "ts"], batch.schema.names
    return batch


ORDERS: dict[str, Callable[[DataStream], None]] = {
    "event time first": lambda stream: (windows(stream), others(stream))[0],
    "event time last": lambda stream: (others(stream), windows(stream))[0],
}


@pytest.mark.promise("B1")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("crash", [False, True], ids=["no fault", "a crash"])
def test_watermarks_are_per_split_whatever_the_order_of_statements(order: str, crash: bool) -> None:
    faults = [Checkpoint(), Crash()] if crash else []

    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("1 min")
        ORDERS[order](env.from_source(source(*faults), "k string, ts long", uid="numbers"))

    ran = run(job)
    assert sum(row["n"] for row in ran.rows("windows")) == 3 * len(SECONDS), "records were dropped as late"
    assert len(ran.rows("rows")) == len(ran.rows("batches")) == len(ran.rows("sums")) == 3 * len(SECONDS)


IMPOSSIBLE = [
    ("long", 1_700_000_000_000_000_000, "is it in nanoseconds? Event time is in milliseconds since 1970"),
    ("long", 10**17, "is it in nanoseconds?"),
    ("long", 1_700_000_000_000_000, "is it in microseconds? Event time is in milliseconds since 1970"),
    ("long", 2**62, "is it in nanoseconds?"),
    ("long", 2**63 - 1, "is it in nanoseconds?"),
    ("long", -(2**63), "is it in nanoseconds?"),
    ("timestamp", 2**62, "correct or filter such records before they reach the source"),
]


@pytest.mark.promise("B1", "H8")
@pytest.mark.parametrize("place", ["source", "operator"])
@pytest.mark.parametrize(
    ("kind", "value", "says"), IMPOSSIBLE, ids=[f"{kind} {value}" for kind, value, _ in IMPOSSIBLE]
)
def test_an_impossible_event_time_ends_the_job_and_names_column_and_value(
    kind: str, value: int, says: str, place: str
) -> None:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("1 min")
        records = [{"k": "a", "ts": 1000}, {"k": "a", "ts": value}, {"k": "a", "ts": 2000}]
        stream = env.from_source(ListSource(records), f"k string, ts {kind}", uid="numbers")
        windows(stream if place == "source" else stream.select("k", "ts"))

    with pytest.raises(JobFailed) as caught:
        run(job)
    where = "source 'numbers', split '0'" if place == "source" else "operator 'numbers.timestamps'"
    assert f"{where}: the event time column 'ts' (" in str(caught.value)
    assert f"holds {value}, which is not between the years 1 and 9999; {says}" in str(caught.value)


@pytest.mark.promise("B1")
def test_event_times_of_the_years_1_and_9999_are_accepted() -> None:
    batch = pa.record_batch({"t": pa.array([-62_135_596_800_000, None, 253_402_300_799_999])})
    assert event_times(batch, "t", "here").to_pylist() == [-62_135_596_800_000, None, 253_402_300_799_999]
    with pytest.raises(BadEventTime, match="holds 18446744073709551615"):
        event_times(pa.record_batch({"t": pa.array([2**64 - 1], pa.uint64())}), "t", "here")
