"""Watermark generators of the job's author (B1): one per split, combined as all others are, and part of the snapshot.

Topology: a source of one or two splits whose records carry markers, and windows of ten seconds; the generator is called
with each record, with each batch, or behind another operator. Faults: checkpoints, crashes and restores at another
parallelism, also between two calls of a generator that keeps state. Checks: every window; which records are late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from engine.api import (
    FixedDelay,
    OutputTag,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkGenerator,
    WatermarkGeneratorContext,
    WatermarkOutput,
    WatermarkStrategy,
    count,
)
from engine.connectors.table import TableSink
from engine.core.functions import Row
from engine.core.sources import Source
from engine.testing import Checkpoint, Crash, Item, JobFailed, ListSource, LocalRun, Wait, run
from tests.three_ways import three_ways

VIEW = "page string, n long, until long, at long"
LATE = OutputTag("late", VIEW)
STEP_MS, OUT_OF_ORDER_MS = 700, 3000


class ByMarkers(WatermarkGenerator):
    """A record says how far event time has come: until its field `until`."""

    def on_event(self, event: Row, event_timestamp: int, output: WatermarkOutput) -> None:
        assert event["at"] == event_timestamp
        if event["until"] is not None:
            output.emit_watermark(event["until"])


class ByMarkersOfBatches(WatermarkGenerator):
    def on_event(self, event: Row, event_timestamp: int, output: WatermarkOutput) -> None:
        raise AssertionError("on_batch is called in its place")

    def on_batch(self, batch: pa.RecordBatch, timestamps: pa.Array, output: WatermarkOutput) -> None:
        assert batch.column("at").equals(timestamps) and batch.schema.names == ["page", "n", "until", "at"]
        until = pc.max(batch.column("until")).as_py()
        if until is not None:
            output.emit_watermark(until)


class Bounded(WatermarkGenerator):
    """What `for_bounded_out_of_orderness` does, as Flink's documentation writes it."""

    def __init__(self) -> None:
        self.highest = -(2**63) + OUT_OF_ORDER_MS + 1

    def on_event(self, event: Row, event_timestamp: int, output: WatermarkOutput) -> None:
        self.highest = max(self.highest, event_timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self.highest - OUT_OF_ORDER_MS - 1)


def strategy_of(generator: Callable[[], WatermarkGenerator], **options: Any) -> WatermarkStrategy:
    return WatermarkStrategy.for_generator(lambda context: generator(), **options).with_timestamps("at")


def view(n: int, at: int | None, until: int | None = None, page: str = "home") -> Row:
    return {"page": page, "n": n, "until": until, "at": at}


def views() -> list[Item]:
    """Returns records that are out of order, some without event time; every fifth says what does not follow it."""
    times = [n * STEP_MS + (n * 7919) % OUT_OF_ORDER_MS for n in range(60)]
    made: list[Item] = []
    for n, at in enumerate(times):
        until = min(times[n + 1 :], default=at) - 1 if n % 5 == 4 else None
        made.append(view(n, None if n % 11 == 0 else at, until, "ab"[n % 2]))
    return made


def counted(env: StreamEnvironment, source: Source, strategy: WatermarkStrategy, behind: bool = False) -> None:
    read = env.from_source(source, VIEW, uid="views")
    timed = (read.select("page", "n", "until", "at") if behind else read).assign_timestamps_and_watermarks(strategy)
    windows = timed.key_by("page").window(TumblingEventTimeWindows.of("10 s")).side_output_late_data(LATE)
    counts = windows.aggregate(views=count(), uid="counts")
    counts.select("page", "window_start", "views").sink_to(TableSink("out"), uid="out")
    counts.get_side_output(LATE).sink_to(TableSink("late"), uid="late")


@pytest.mark.promise("A5", "B1", "D7")
@pytest.mark.parametrize("behind", [False, True], ids=["at the source", "behind another operator"])
@pytest.mark.parametrize("generator", [ByMarkers, ByMarkersOfBatches, Bounded])
def test_windows_of_generated_watermarks_are_exact_undisturbed_crashed_and_rescaled(
    generator: Callable[[], WatermarkGenerator], behind: bool
) -> None:
    def define(env: StreamEnvironment, source: Source) -> None:
        counted(env, source, strategy_of(generator), behind)

    got = three_ways(define, views(), tables=("out", "late"))
    wanted: dict[tuple[str, int], int] = {}
    for row in views():
        assert isinstance(row, dict)
        if row["at"] is not None:
            window = (row["page"], row["at"] // 10_000 * 10_000)
            wanted[window] = wanted.get(window, 0) + 1
    seen = {(row["page"], round(row["window_start"].timestamp() * 1000)): row["views"] for row in got["out"]}
    assert len(seen) == len(got["out"]) and seen == wanted
    assert got["late"] == []


# --- with a run of its own, to see when what fires ---


def job(strategy: WatermarkStrategy, *splits: list[Item]) -> Callable[[StreamEnvironment], None]:
    def define(env: StreamEnvironment) -> None:
        env.enable_checkpointing("10 s")
        env.set_restart_strategy(FixedDelay(attempts=20, delay_ms=5))
        counted(env, ListSource(*splits), strategy)

    return define


def late(result: LocalRun) -> list[int]:
    return sorted(row["n"] for row in result.rows("late"))


@pytest.mark.promise("B1")
def test_a_watermark_closes_windows_for_the_records_behind_it_and_never_goes_back() -> None:
    result = run(
        job(strategy_of(ByMarkers), [view(1, 5000, 9_999), view(2, 21_000, 4_000), view(3, 6000), view(4, 11_000)])
    )
    assert late(result) == [3]


@pytest.mark.promise("B1", "B2")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_each_split_has_its_own_generator_and_the_slowest_counts(parallelism: int) -> None:
    slow = [view(1, 1000, 500), Wait("1 min"), view(2, 6000)]
    quick = [view(3, 2000, 30_000), view(4, 31_000), Wait("5 min"), view(5, 32_000)]
    assert late(run(job(strategy_of(ByMarkers), slow, quick), parallelism=parallelism)) == []
    seen = [view(1, 1000, 12_000), Wait("1 min"), view(2, 6000)]
    assert late(run(job(strategy_of(ByMarkers), seen, quick), parallelism=parallelism)) == [2]


class ByTheClock(WatermarkGenerator):
    """Event time is the time of the clock, as long as the generator has run."""

    def __init__(self, context: WatermarkGeneratorContext) -> None:
        self._context = context
        self._began = context.current_processing_time()

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self._context.current_processing_time() - self._began)


@pytest.mark.promise("B1")
def test_a_quiet_split_is_asked_every_interval_so_that_the_clock_can_move_event_time() -> None:
    def ran(interval: str) -> LocalRun:
        strategy = WatermarkStrategy.for_generator(ByTheClock, emit_interval=interval).with_timestamps("at")
        return run(job(strategy, [view(1, 0), Wait("25 s"), view(2, 5000), view(3, 29_000)]))

    assert late(ran("200 ms")) == [2]
    assert late(ran("1 min")) == []


@pytest.mark.promise("B1")
def test_behind_another_operator_a_generator_is_asked_every_interval_too() -> None:
    def define(env: StreamEnvironment) -> None:
        strategy = WatermarkStrategy.for_generator(ByTheClock).with_timestamps("at")
        counted(env, ListSource([view(1, 0), Wait("25 s"), view(2, 5000), view(3, 29_000)]), strategy, behind=True)

    assert late(run(define)) == [2]


# --- state ---


class EveryThird(WatermarkGenerator):
    """Every third record closes what is before it. It keeps how many it has seen."""

    def __init__(self) -> None:
        self.seen = 0

    def on_event(self, event: Row, event_timestamp: int, output: WatermarkOutput) -> None:
        self.seen += 1
        if self.seen % 3 == 0:
            output.emit_watermark(event_timestamp)


class Remembering(EveryThird):
    def snapshot_state(self) -> Any:
        return {"seen": self.seen}

    def restore_state(self, state: Any) -> None:
        self.seen = state["seen"]


def counting_to_three(*faults: Item) -> list[Item]:
    """The third record is at 35 s; the record at 6 s is late if the generator has counted three before it."""
    return [view(1, 1000), view(2, 2000), Checkpoint(), *faults, view(3, 35_000), view(4, 6000), view(5, 36_000)]


@pytest.mark.promise("B1", "D7")
@pytest.mark.parametrize("parallelism", [1, 3])
def test_what_a_generator_keeps_is_restored_and_one_that_keeps_nothing_begins_anew(parallelism: int) -> None:
    for generator, wanted in ((Remembering, [4]), (EveryThird, [])):
        assert late(run(job(strategy_of(generator), counting_to_three()))) == [4]
        crashed = run(job(strategy_of(generator), counting_to_three(Crash())), parallelism=parallelism)
        assert (crashed.restarts, late(crashed)) == (1, wanted)
        story = counting_to_three()
        begun = run(job(strategy_of(generator), story), until=lambda running: running.epochs >= 1)
        assert late(run(job(strategy_of(generator), story), parallelism=parallelism, after=begun)) == wanted


@pytest.mark.promise("B1", "D7", "D8")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_restore_never_lowers_the_clock_whatever_makes_the_watermarks_from_then_on(parallelism: int) -> None:
    """The second split is read from its beginning, so that the generator of the first alone knows the time."""
    bounded = WatermarkStrategy.for_bounded_out_of_orderness("1 min").with_timestamps("at")
    for after in (strategy_of(ByMarkers), bounded):
        story: list[Item] = [view(1, 1000, 25_000), Checkpoint(), view(2, 5000), view(3, 26_000)]
        begun = run(job(strategy_of(ByMarkers), story), until=lambda running: running.epochs >= 1)
        assert late(run(job(after, story), parallelism=parallelism, after=begun)) == [2]
    story = [view(1, 100_000), Checkpoint(), view(2, 5000), view(3, 101_000)]
    begun = run(job(bounded, story), until=lambda running: running.epochs >= 1)
    assert late(run(job(strategy_of(ByMarkers), story), parallelism=parallelism, after=begun)) == [2]


# --- idleness and alignment ---


@pytest.mark.promise("B1", "B2")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_quiet_split_with_a_generator_falls_idle(parallelism: int) -> None:
    def splits() -> list[list[Item]]:
        return [
            [view(1, 1000, 900), Wait("10 min"), view(2, 5000, 39_000), view(3, 40_000)],
            [view(4, 2000, 24_000), Wait("15 min"), view(5, 45_000)],
        ]

    strategy = strategy_of(ByMarkers)
    assert late(run(job(strategy, *splits()), parallelism=parallelism)) == []
    assert late(run(job(strategy.with_idleness("1 min"), *splits()), parallelism=parallelism)) == [2]


class Resting(WatermarkGenerator):
    """A record without pages to come says that the split rests."""

    def on_event(self, event: Row, event_timestamp: int, output: WatermarkOutput) -> None:
        if event["page"] == "rest":
            output.mark_idle()
        elif event["page"] == "go":
            output.mark_active()
        elif event["until"] is not None:
            output.emit_watermark(event["until"])


@pytest.mark.promise("B1", "B2")
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("again", [view(9, 8000, None, "go"), view(9, 8000, 950)], ids=["marked", "by a watermark"])
def test_a_generator_may_say_that_its_split_is_idle_and_that_it_is_active_again(parallelism: int, again: Row) -> None:
    resting = [
        view(1, 1000, 900),
        view(2, 1500, None, "rest"),
        Wait("1 min"),
        view(3, 15_000),
        again,
        Wait("2 min"),
        view(4, 26_000),
    ]
    going = [view(5, 2000, 9_999), Wait("30 s"), view(6, 20_000), Wait("1 min"), view(7, 21_000, 40_000), Wait("3 min")]
    result = run(job(strategy_of(Resting), resting, going), parallelism=parallelism)
    assert late(result) == [9], "the other split alone has closed the first window, and no later one"


@pytest.mark.promise("B1", "B9")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_splits_with_generators_wait_for_their_alignment_group(parallelism: int) -> None:
    """The quick split is read only so far as the markers of the slow one allow, so it is paused for the slow one."""
    aligned = strategy_of(ByMarkers).with_watermark_alignment("all", "10 s", "5 ms")
    quick: list[Item] = [view(n, 1000 * n, 1000 * n) for n in range(60)]
    slow: list[Item] = [part for n in range(0, 60, 5) for part in (view(100 + n, 1000 * n, 1000 * n), Wait("1 s"))]
    waited: list[int] = []

    def look(running: LocalRun) -> bool:
        totals = [total for slot in running.slots for total in slot.runtime.totals().values()]
        waited.extend(total.waits.drift_ms for total in totals if total.waits and total.waits.drift_ms is not None)
        return False

    result = run(job(aligned, quick, slow), parallelism=parallelism, until=look)
    assert late(result) == [] and sum(row["views"] for row in result.rows("out")) == 72
    assert waited and max(waited) <= 11_000, "a split is read for one record beyond the limit, of a second"


# --- mistakes ---


class Broken(WatermarkGenerator):
    def on_event(self, event: Row, event_timestamp: int, output: WatermarkOutput) -> None:
        output.emit_watermark(event_timestamp / event["n"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n", "says"),
    [(0, "ZeroDivisionError"), (2, "emit_watermark takes milliseconds since 1970, an int, not 2500.0")],
)
def test_an_error_of_a_generator_ends_the_job_and_names_the_split_and_the_record(n: int, says: str) -> None:
    def define(env: StreamEnvironment) -> None:
        counted(env, ListSource([view(n, 5000)]), strategy_of(Broken))

    with pytest.raises(JobFailed) as failed:
        run(define)
    text = str(failed.value)
    assert says in text and "views" in text and "split '0', on_event" in text
