"""Late records of windows with built-in aggregates (B7), as a job.

Topology: a source, windows of 10 ms per key, one table of results and one of late records. Fault: a crash behind a
checkpoint, and a restore at another parallelism. Checks: the rows of both tables, the same three ways.
"""

import pytest

from engine.api import (
    CEP,
    JobError,
    OutputTag,
    Pattern,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
    total,
)
from engine.connectors.table import TableSink
from engine.testing import ListSource
from tests.three_ways import three_ways

LATE = OutputTag("late", "k string, x long, ts long")
TIMES = [1, 12, 3, 25, 14, 38, 9, 21, 47, 33, None, 58, 2, 49]
ROWS = [{"k": k, "x": n, "ts": t} for n, t in enumerate(TIMES) for k in ("a", "b", None)]


def define(lateness: int):
    def job(env: StreamEnvironment, source: ListSource) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
        stream = env.from_source(source, "k string, x long, ts long", uid="in")
        stream = stream.assign_timestamps_and_watermarks(strategy)
        windows = stream.key_by("k").window(TumblingEventTimeWindows.of(10)).allowed_lateness(lateness)
        results = windows.side_output_late_data(LATE).aggregate(n=count(), sum=total("x"), uid="w")
        results.sink_to(TableSink("out"), uid="out")
        results.get_side_output(LATE).sink_to(TableSink("late"), uid="late")

    return job


def expected(lateness: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Returns (start, sum) of every result for one key, and the times of the late records."""
    clock, held, fired, results, late = -1, {}, set(), [], []
    for n, t in enumerate(TIMES):
        if t is None:
            continue
        start = t // 10 * 10
        if start + 9 + lateness <= clock:
            late.append(t)
            continue
        held[start] = held.get(start, 0) + n
        if start in fired:
            results.append((start, held[start]))
        clock = max(clock, t - 1)
        due = [s for s in held if s not in fired and s + 9 <= clock]
        results += [(s, held[s]) for s in due]
        fired.update(due)
    return results + [(s, held[s]) for s in held if s not in fired], late


@pytest.mark.promise("B7", "A8", "D7", "D11")
@pytest.mark.parametrize("lateness", [0, 15])
def test_late_records_and_repeated_results_are_the_same_after_a_crash_at_another_parallelism(lateness: int) -> None:
    tables = three_ways(define(lateness), ROWS, tables=("out", "late"))
    results, late = expected(lateness)
    assert late and (len(results) > len(set(start for start, _ in results))) == (lateness > 0)
    for key in ("a", "b", None):
        got = [(int(row["window_start"].timestamp() * 1000), row["sum"]) for row in tables["out"] if row["k"] == key]
        assert sorted(got) == sorted(results)
        assert sorted(row["ts"] for row in tables["late"] if row["k"] == key) == sorted(late)


@pytest.mark.parametrize("lane", ["columnar", "row"])
def test_late_records_that_nothing_takes_are_an_error_before_the_job_starts(lane: str) -> None:
    env = StreamEnvironment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    stream = env.from_elements([], "k string, x long, ts long").assign_timestamps_and_watermarks(strategy)
    windows = stream.key_by("k").window(TumblingEventTimeWindows.of(10)).side_output_late_data(LATE)
    row = lane == "row"
    results = windows.reduce(lambda left, right: left, uid="w") if row else windows.aggregate(n=count(), uid="w")
    results.print()
    with pytest.raises(JobError, match=r"the late records of 'w'.* have no consumer: .*get_side_output\(LATE\)"):
        env.build("job")
    with pytest.raises(JobError, match=r"'w'.* has no side output 'lste'; did you mean 'late'\?"):
        results.get_side_output(OutputTag("lste", LATE.schema))


@pytest.mark.promise("A8", "A11")
@pytest.mark.parametrize("operator", ["pattern", "left", "right"])
def test_late_records_of_patterns_and_joins_that_nothing_takes_are_an_error_before_the_job_starts(
    operator: str,
) -> None:
    env = StreamEnvironment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    keyed = env.from_elements([], "k string, x long, ts long").assign_timestamps_and_watermarks(strategy).key_by("k")
    join = keyed.interval_join(keyed).between(0, 5)
    match operator:
        case "pattern":
            found = CEP.pattern(keyed, Pattern.begin("a")).side_output_late_data(LATE)
            results = found.select(lambda match: match["a"][0], uid="w")
        case "left":
            results = join.side_output_left_late_data(LATE).select("x", uid="w")
        case _:
            results = join.side_output_right_late_data(LATE).select("x", uid="w")
    results.print()
    with pytest.raises(JobError, match=r"the late records of 'w'.* have no consumer: .*get_side_output\(LATE\)"):
        env.build("job")
    results.get_side_output(LATE).print()
    env.build("job")
