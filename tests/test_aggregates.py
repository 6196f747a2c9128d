"""Built-in aggregates that keep a state of their own (B5), and session windows (B4), as jobs.

Topology: a source, tumbling or session windows per key, a table. Fault: a crash behind a checkpoint, and a restore at
another parallelism. Checks: the rows, the same three ways, and equal to plain Python.
"""

import pytest

from engine.api import (
    EventTimeSessionWindows,
    OutputTag,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    approx_count_distinct,
    approx_quantile,
    count,
    count_distinct,
    first,
    last,
    quantiles,
    stddev,
    top_n,
)
from engine.connectors.table import TableSink
from engine.protocol.signals import MAX_WATERMARK
from engine.testing import ListSource
from tests.runtime.operators.test_session_window import Model
from tests.three_ways import three_ways

ROWS = [
    {"k": "ab"[n % 2], "x": None if n % 5 == 0 else n * 7 % 11, "s": "pqr"[n % 3], "ts": n // 4 * 4} for n in range(36)
]


def define(env: StreamEnvironment, source: ListSource) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(5).with_timestamps("ts")
    stream = env.from_source(source, "k string, x long, s string, ts long", uid="in")
    windows = stream.assign_timestamps_and_watermarks(strategy).key_by("k").window(TumblingEventTimeWindows.of(20))
    windows.aggregate(
        first=first("x"),
        last=last("s"),
        distinct=count_distinct("x"),
        about=approx_count_distinct("x"),
        top=top_n("s", 2, by="x"),
        spread=quantiles("x", [0, 0.5]),
        roughly=approx_quantile("x", 1),
        dev=stddev("x"),
        uid="w",
    ).sink_to(TableSink("out"), uid="out")


@pytest.mark.promise("B5", "D7")
def test_aggregates_with_a_state_are_the_same_after_a_crash_at_another_parallelism() -> None:
    rows = three_ways(define, ROWS)["out"]
    assert len(rows) == 4
    for got in rows:
        start = round(got["window_start"].timestamp() * 1000)
        mine = [
            row for row in ROWS if row["k"] == got["k"] and start <= row["ts"] < start + 20 and row["x"] is not None
        ]
        values = sorted(row["x"] for row in mine)
        assert got["first"] == min((row["ts"], row["x"]) for row in mine)[1]
        assert got["distinct"] == got["about"] == len(set(values))
        assert [(one["x"], one["s"]) for one in got["top"]] == sorted(((r["x"], r["s"]) for r in mine), reverse=True)[
            :2
        ]
        assert got["spread"][0] == values[0] and got["roughly"] == pytest.approx(values[-1], rel=0.01)


LATE = OutputTag("late", "k string, x long, s string, ts long")
TIMES = [0, 3, 20, 8, 22, 60, 15, 31, 64, 75, 58, 140, 66, 149, 20, 135]
CLICKS = [{"k": k, "x": n, "s": "p", "ts": t} for n, t in enumerate(TIMES) for k in ("a", "b", None)]


@pytest.mark.promise("B4", "B7", "D7")
@pytest.mark.parametrize("aside", [False, True])
def test_sessions_and_their_late_records_are_the_same_after_a_crash_at_another_parallelism(aside: bool) -> None:
    def job(env: StreamEnvironment, source: ListSource) -> None:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(4).with_timestamps("ts")
        stream = env.from_source(source, "k string, x long, s string, ts long", uid="in")
        keyed = stream.assign_timestamps_and_watermarks(strategy).key_by("k")
        windows = keyed.window(EventTimeSessionWindows.with_gap(10))
        windows = windows.side_output_late_data(LATE) if aside else windows
        results = windows.aggregate(n=count(), first=first("x"), xs=count_distinct("x"), uid="w")
        results.sink_to(TableSink("out"), uid="out")
        if aside:
            results.get_side_output(LATE).sink_to(TableSink("late"), uid="late")

    tables = three_ways(job, CLICKS, tables=("out", "late") if aside else ("out",))
    model, results, late = Model(gap=10, lateness=0), [], []
    for n, t in enumerate(TIMES):
        again, lost = model.rows([("a", n, t)])
        assert not again
        late += [t] * lost
        results += model.watermark(max(TIMES[: n + 1]) - 5)
    results += model.watermark(MAX_WATERMARK)
    assert late and len(results) > 4
    for key in ("a", "b", None):
        got = [row for row in tables["out"] if row["k"] == key]
        bounds = [[round(row[bound].timestamp() * 1000) for bound in ("window_start", "window_end")] for row in got]
        assert sorted((*ends, row["n"]) for ends, row in zip(bounds, got, strict=True)) == sorted(
            one[:3] for one in results
        )
        assert all(row["xs"] == row["n"] for row in got)
        assert [row["first"] for row in got if row["window_start"].timestamp() == 0] == [0]
        if aside:
            assert sorted(row["ts"] for row in tables["late"] if row["k"] == key) == sorted(late)
