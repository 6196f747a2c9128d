"""Splits that fall idle: `with_idleness` lets the others move event time on, and a record ends the idleness.

Topology: a source of two splits, of which one gives nothing for ten minutes, and windows of ten seconds; one subtask
reads both splits, or two read one each. Faults: a crash while a split is idle. Checks: a record of the quiet split
that is older than the others' watermark is late if, and only if, the split was idle; no record is lost.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.api import JobError, OutputTag, StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count
from engine.connectors.table import TableSink
from engine.testing import Checkpoint, Crash, Item, ListSource, LocalRun, Wait, run

IN_ORDER = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
PATIENT = IN_ORDER.with_idleness("1 min")
CLICK = "page string, at long"
LATE = OutputTag("late", CLICK)


def click(second: int) -> dict[str, object]:
    return {"page": "home", "at": 1000 * second}


def counting(strategy: WatermarkStrategy, *splits: list[Item]) -> Callable[[StreamEnvironment], None]:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("10 s")
        clicks = env.from_source(ListSource(*splits), CLICK, uid="clicks").assign_timestamps_and_watermarks(strategy)
        windows = clicks.key_by("page").window(TumblingEventTimeWindows.of("10 s")).side_output_late_data(LATE)
        counts = windows.aggregate(n=count(), uid="counts")
        counts.sink_to(TableSink("counts"), uid="out")
        counts.get_side_output(LATE).sink_to(TableSink("late"), uid="late")

    return job


def ran(strategy: WatermarkStrategy, *splits: list[Item], parallelism: int = 1) -> LocalRun:
    return run(counting(strategy, *splits), parallelism=parallelism)


def late(result: LocalRun) -> list[int]:
    """Returns the seconds of the late records; all others have been counted once."""
    return sorted(row["at"] // 1000 for row in result.rows("late"))


def counted(result: LocalRun) -> int:
    return sum(row["n"] for row in result.rows("counts"))


@pytest.mark.promise("B1", "B2")
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("begun", [[], [click(2)]], ids=["before its first record", "behind a record"])
def test_a_quiet_split_holds_event_time_back_only_until_it_is_idle(parallelism: int, begun: list[Item]) -> None:
    def splits() -> list[list[Item]]:
        return [[*begun, Wait("10 min"), click(5), click(40)], [click(3), click(25), Wait("15 min"), click(45)]]

    waiting = ran(IN_ORDER, *splits(), parallelism=parallelism)
    assert (late(waiting), counted(waiting)) == ([], 5 + len(begun))
    moving = ran(PATIENT, *splits(), parallelism=parallelism)
    assert (late(moving), counted(moving)) == ([5], 4 + len(begun))


@pytest.mark.promise("B1", "B2")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_split_that_is_quiet_for_less_than_the_time_is_waited_for(parallelism: int) -> None:
    pauses: list[Item] = [part for at in range(2, 8) for part in (Wait("50 s"), click(at))]
    result = ran(PATIENT, pauses, [click(3), click(25), Wait("10 min"), click(45)], parallelism=parallelism)
    assert (late(result), counted(result)) == ([], 9)


@pytest.mark.promise("B1", "B2")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_split_that_is_read_again_holds_event_time_back_again(parallelism: int) -> None:
    back = [click(1), Wait("10 min"), click(26), Wait("30 s"), click(27)]
    result = ran(
        PATIENT, back, [click(25), Wait("601 s"), click(60), Wait("10 min"), click(61)], parallelism=parallelism
    )
    assert (late(result), counted(result)) == ([], 6)


@pytest.mark.promise("B1", "B2")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_when_all_splits_are_idle_event_time_is_that_of_the_furthest(parallelism: int) -> None:
    """Both fall idle, the one behind last; then both are read again, behind the furthest."""
    result = ran(
        PATIENT,
        [click(2), Wait("10 s"), click(3), Wait("10 min"), click(5), click(40)],
        [click(25), Wait("10 min"), click(26)],
        parallelism=parallelism,
    )
    assert (late(result), counted(result)) == ([5], 5)


@pytest.mark.promise("B1", "B2")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_crash_while_a_split_is_idle_changes_nothing(parallelism: int) -> None:
    quiet = [click(2), Wait("10 min"), click(5), click(40)]
    going = [click(3), click(25), Wait("2 min"), Checkpoint(), Crash(), click(26), Wait("15 min"), click(45)]
    result = ran(PATIENT, quiet, going, parallelism=parallelism)
    assert result.restarts == 1
    assert (late(result), counted(result)) == ([5], 6)


@pytest.mark.promise("B2", "B9")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_an_idle_split_does_not_hold_its_alignment_group_back(parallelism: int) -> None:
    aligned = PATIENT.with_watermark_alignment("all", "10 s", "100 ms")
    quiet = [click(2), Wait("10 min"), click(5), click(40)]
    result = ran(aligned, quiet, [*map(click, range(3, 90, 3)), Wait("15 min"), click(95)], parallelism=parallelism)
    assert (late(result), counted(result)) == ([5, 40], 31)


@pytest.mark.promise("B2", "B9")
def test_a_split_that_waits_for_its_alignment_group_is_not_idle() -> None:
    """The quick split may not be read for minutes, since the other one is slow; its records are not late by that."""
    aligned = PATIENT.with_watermark_alignment("all", "10 s", "100 ms")
    slow: list[Item] = [part for at in range(1, 60, 5) for part in (Wait("50 s"), click(at))]
    result = ran(aligned, slow, [*map(click, range(3, 90, 3))], parallelism=2)
    assert (late(result), counted(result)) == ([], 12 + 29)


@pytest.mark.promise("H8")
def test_what_with_idleness_does_not_take_is_said_while_the_job_is_built() -> None:
    env = StreamEnvironment()
    clicks = env.from_elements([click(1)], CLICK, uid="clicks")
    with pytest.raises(JobError, match=r"with_idleness.*0 ms; it must be above 0"):
        clicks.assign_timestamps_and_watermarks(IN_ORDER.with_idleness(0))
    behind = clicks.select("page", "at")
    with pytest.raises(JobError, match=r"with_idleness.* behind .*call assign.* on the stream of the source"):
        behind.assign_timestamps_and_watermarks(IN_ORDER.with_idleness("1 min"))
    clicks.assign_timestamps_and_watermarks(IN_ORDER.with_idleness("1 min"))
    with pytest.raises(JobError, match=r"has event time already, .* idle after 60000 ms"):
        clicks.assign_timestamps_and_watermarks(IN_ORDER)


@pytest.mark.promise("B2", "D8")
@pytest.mark.parametrize(("before", "after"), [(IN_ORDER, PATIENT), (PATIENT, IN_ORDER)], ids=["added", "removed"])
def test_idleness_may_be_added_and_removed_between_two_versions_of_a_job(
    before: WatermarkStrategy, after: WatermarkStrategy
) -> None:
    splits: list[list[Item]] = [
        [click(2), Wait("10 min"), click(5), click(40)],
        [click(3), Checkpoint(), click(25), Wait("15 min"), click(45)],
    ]
    begun = run(counting(before, *splits), until=lambda running: running.epochs >= 1)
    result = run(counting(after, *splits), parallelism=2, after=begun)
    assert (late(result), counted(result)) == (([5], 5) if after is PATIENT else ([], 6))


@pytest.mark.promise("B1", "B2")
def test_no_record_that_is_held_before_the_exchange_is_late_because_its_input_falls_idle() -> None:
    """Without a side output rows are grouped before the exchange: those behind the first batch wait for more of them.
    There are no checkpoints meanwhile, which would send them on."""

    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("1 h")
        waits = [click(2), Wait("1 s"), click(12), Wait("20 min"), click(55)]
        goes_on = [click(3), Wait("1 s"), click(25), Wait("5 min"), click(45), Wait("20 min"), click(56)]
        clicks = env.from_source(ListSource(waits, goes_on), CLICK, uid="clicks")
        windows = clicks.assign_timestamps_and_watermarks(PATIENT).key_by("page")
        counts = windows.window(TumblingEventTimeWindows.of("10 s")).aggregate(n=count(), uid="counts")
        counts.sink_to(TableSink("counts"), uid="out")

    result = run(job, parallelism=2)
    assert sorted(row["n"] for row in result.rows("counts")) == [1, 1, 1, 2, 2]
