"""The harness for people who write jobs: recovery tests that read like stories."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from engine.api import (
    FixedDelay,
    JobError,
    KeyedProcessFunction,
    MapFunction,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
)
from engine.connectors.table import TableSink
from engine.core.sources import FixedSource, SourceContext, SplitReader
from engine.testing import Checkpoint, Crash, Item, JobFailed, ListSource, Wait, run


def view(app: str, second: int) -> dict[str, Any]:
    return {"app": app, "ts": second * 1000}


def per_window(*splits: list[Item]) -> Any:
    def job(env: StreamEnvironment) -> None:
        env.set_restart_strategy(FixedDelay(attempts=5, delay_ms=10))
        views = env.from_source(ListSource(*splits), "app string, ts long", uid="views")
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
        windows = (
            views.assign_timestamps_and_watermarks(strategy).key_by("app").window(TumblingEventTimeWindows.of("10 s"))
        )
        windows.aggregate(pv=count(), uid="pv").sink_to(TableSink("pv"), uid="out")

    return job


def counts(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return sorted((row["app"], int(row["window_start"].timestamp()), row["pv"]) for row in rows)


@pytest.mark.promise("A1", "D11")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_crash_after_a_checkpoint_changes_nothing(parallelism: int) -> None:
    calm = [view("a", 1), view("b", 2), view("a", 3), view("a", 12), view("b", 25)]
    story = [calm[0], calm[1], Checkpoint(), calm[2], calm[3], Crash(), calm[4]]
    other = [view("b", 1), Crash(), view("a", 11), Checkpoint(), view("a", 30)]
    broken = run(per_window(story, other), parallelism=parallelism)
    whole = run(per_window(calm, [item for item in other if isinstance(item, dict)]), parallelism=parallelism)
    assert broken.restarts == 2 and whole.restarts == 0
    assert counts(broken.rows("pv")) == counts(whole.rows("pv"))


def test_without_a_checkpoint_everything_is_read_again() -> None:
    result = run(per_window([view("a", 1), Crash(), view("a", 2)]))
    assert counts(result.rows("pv")) == [("a", 0, 2)]
    assert result.epochs == 1, "the final checkpoint"


class Total(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self._total = context.get_state(ValueStateDescriptor("total", pa.int64()))

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[dict[str, Any]]:
        self._total.update((self._total.value() or 0) + 1)
        yield {"app": value["app"], "total": self._total.value()}


def test_value_state_comes_back_with_the_checkpoint() -> None:
    def job(env: StreamEnvironment) -> None:
        env.set_restart_strategy(FixedDelay(attempts=1, delay_ms=10))
        source = ListSource([view("a", 1), view("a", 2), Checkpoint(), view("a", 3), Crash(), view("b", 4)])
        keyed = env.from_source(source, "app string, ts long", uid="views").key_by("app")
        keyed.process(Total(), uid="total", schema="app string, total long").sink_to(TableSink("t"), uid="out")

    rows = sorted((row["app"], row["total"]) for row in run(job).rows("t"))
    assert rows == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]


def test_a_job_that_fails_raises_with_its_own_error() -> None:
    def job(env: StreamEnvironment) -> None:
        stream = env.from_source(ListSource([view("a", 1)]), "app string, ts long", uid="views")
        stream.map(lambda row: {**row, "ts": 1 // 0}).sink_to(TableSink("t"), uid="out")

    with pytest.raises(JobFailed, match=r"operator 'map-1', subtask 0, record 1 .*ZeroDivisionError"):
        run(job)


class Numbering(MapFunction):
    """Forgets to use state: what it knows is an attribute."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def map(self, value: dict[str, Any]) -> dict[str, Any]:
        self.seen.append(1)
        return {**value, "number": len(self.seen)}


@pytest.mark.promise("A5")
def test_each_subtask_of_each_attempt_has_a_function_of_its_own() -> None:
    def job(env: StreamEnvironment) -> None:
        env.set_restart_strategy(FixedDelay(attempts=5, delay_ms=10))
        rows = env.from_source(
            ListSource([view("a", 1), Crash(), view("a", 2)], [view("b", 1)]), "app string, ts long", uid="r"
        )
        rows.map(Numbering(), schema="app string, ts long, number long").sink_to(TableSink("out"), uid="out")

    rows = run(job, parallelism=2).rows("out")
    assert sorted((row["app"], row["number"]) for row in rows) == [("a", 1), ("a", 2), ("b", 1)]


@pytest.mark.promise("B8")
def test_waiting_takes_no_steps() -> None:
    """Each second of a year at a millisecond a turn would be more turns than a run has."""

    def job(env: StreamEnvironment) -> None:
        items: list[Item] = [{"n": 1}, Wait("365 d"), {"n": 2}]
        env.from_source(ListSource(items), "n long", uid="n").sink_to(TableSink("out"), uid="out")

    result = run(job)
    assert [row["n"] for row in result.rows("out")] == [1, 2]
    assert result.now_ms() > 365 * 86_400_000 and result.restarts == 0


def _divided(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": 1 // row["n"]}


def _numbers(env: StreamEnvironment) -> Any:
    return env.from_source(ListSource([{"n": 0}]), "n long", uid="numbers")


def test_an_error_of_a_function_shows_the_authors_line() -> None:
    with pytest.raises(JobFailed) as caught:
        run(lambda env: _numbers(env).map(_divided).sink_to(TableSink("out"), uid="out"))
    assert f'File "{__file__}"' in str(caught.value) and '1 // row["n"]' in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (lambda batch: None, "None"),
        (lambda batch: pa.table(batch), "an object of Table"),
        (lambda batch: batch.to_pandas(), "an object of DataFrame"),
    ],
)
def test_a_function_of_batches_that_returns_no_batch_ends_the_job_and_says_what_to_return(
    returned: Any, named: str
) -> None:
    """It is the job's fault: a restart does not help, and the job must not restart for ever."""
    with pytest.raises(JobFailed) as caught:
        run(lambda env: _numbers(env).map_batches(returned, "n long").sink_to(TableSink("out"), uid="out"))
    assert f"'map_batches-1': its function returned {named}: return a pyarrow.RecordBatch" in str(caught.value)


def test_a_list_source_takes_lists() -> None:
    with pytest.raises(JobError, match=r"ListSource takes one list per split, not \{'n': 1\}: write ListSource\(\["):
        ListSource({"n": 1}, {"n": 2})  # type: ignore[arg-type]


def test_a_run_that_does_not_end_names_its_last_failure() -> None:
    class Away(FixedSource):
        def splits(self) -> list[str]:
            return ["0"]

        def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
            raise OSError("the service is away")

    def job(env: StreamEnvironment) -> None:
        env.from_source(Away(), "n long", uid="away").sink_to(TableSink("out"), uid="out")

    with pytest.raises(JobFailed, match="not finished after") as caught:
        run(job)
    assert "the service is away" in str(caught.value)


def test_a_source_with_a_null_in_a_column_that_is_not_null_ends_the_job() -> None:
    def job(env: StreamEnvironment) -> None:
        numbers = env.from_source(ListSource([{"n": 1}, {"n": None}]), "n long not null", uid="numbers")
        numbers.sink_to(TableSink("out"), uid="out")

    with pytest.raises(JobFailed, match="source 'numbers', split '0': the column 'n' is declared NOT NULL"):
        run(job)
