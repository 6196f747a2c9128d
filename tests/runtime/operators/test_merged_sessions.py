"""What is left of sessions that merged: their contents, in order and in one place, and nothing of their timers (B4)."""

from __future__ import annotations

from typing import Any

import pytest

from engine.api import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    ListStateDescriptor,
    NeverTrigger,
    ProcessWindowFunction,
    TriggerResult,
)
from tests.runtime.operators.test_triggers import fed, windows, xs
from tests.runtime.operators.windows_in_subtasks import RESULT, Subtasks

SESSIONS = EventTimeSessionWindows.with_gap(10)


class InOrder(ProcessWindowFunction):
    """Emits the values of a window as they lie there."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window = context.window()
        yield {"k": key, "start": window.start, "end": window.end, "xs": [element["x"] for element in elements]}


@pytest.mark.promise("B4", "B6")
def test_what_an_evictor_leaves_stays_with_a_session_that_has_grown() -> None:
    """The session has grown since its contents got their place, so its bounds and their place differ."""
    subtasks = windows(
        lambda keyed: keyed.window(SESSIONS).trigger(CountTrigger.of(2)).evictor(CountEvictor.of(1, True))
    )
    assert fed(subtasks, 1, 5) == [[], [[1, 5]]]
    assert fed(subtasks.rescaled(2), 6, 7) == [[], [[5, 6, 7]]]


@pytest.mark.promise("B4", "B7")
@pytest.mark.parametrize("lateness", [0, 5])
def test_sessions_that_merged_leave_no_timers(lateness: int) -> None:
    """With lateness a window has two: one that fires it, and one that forgets it."""
    subtasks = windows(lambda keyed: keyed.window(SESSIONS).allowed_lateness(lateness))
    fed(subtasks, 1, 20, 40)
    each = 2 if lateness else 1
    assert subtasks.state()["event-time timers"] == 3 * each
    fed(subtasks, 10, 30)
    assert subtasks.state()["event-time timers"] == each
    assert xs(subtasks.watermark(49)) == [[1, 10, 20, 30, 40]]


@pytest.mark.promise("B4", "B5")
def test_records_of_merged_sessions_are_in_the_order_of_the_sessions() -> None:
    subtasks = Subtasks(lambda keyed: keyed.window(SESSIONS).process(InOrder(), uid="w", schema=RESULT))
    for time in (20, 21, 1, 2, 11):
        subtasks.row("a", time, time)
    assert xs(subtasks.watermark(40)) == [[1, 2, 20, 21, 11]]


@pytest.mark.promise("B4", "B7")
def test_late_sessions_that_merge_behind_the_watermark_fire_once() -> None:
    subtasks = windows(lambda keyed: keyed.window(SESSIONS).allowed_lateness(50))
    fed(subtasks, 1, 20)
    assert sorted(xs(subtasks.watermark(40))) == [[1], [20]]
    assert fed(subtasks, 10) == [[[1, 10, 20]]]
    assert subtasks.watermark(41) == [], "the merged session has fired when its late record came"


class AtThree(NeverTrigger):
    """Fires when a window has three records, which it keeps in a list of its own."""

    def __init__(self) -> None:
        self._seen = ListStateDescriptor("seen", "long")

    def on_element(self, element: Any, timestamp: Any, window: Any, context: Any) -> TriggerResult:
        seen = context.get_partitioned_state(self._seen)
        seen.add(timestamp)
        return TriggerResult.FIRE if len(seen.get()) == 3 else TriggerResult.CONTINUE

    def on_merge(self, window: Any, context: Any) -> None:
        context.merge_partitioned_state(self._seen)

    def clear(self, window: Any, context: Any) -> None:
        context.get_partitioned_state(self._seen).clear()


@pytest.mark.promise("B4", "B6")
def test_lists_of_a_trigger_are_put_together_when_windows_merge() -> None:
    subtasks = windows(lambda keyed: keyed.window(SESSIONS).trigger(AtThree()))
    assert fed(subtasks, 1, 20) == [[], []]
    assert fed(subtasks.rescaled(2), 10) == [[[1, 10, 20]]]
