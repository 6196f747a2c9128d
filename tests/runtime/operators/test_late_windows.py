"""Late records of built-in aggregates (B7): to a side output as whole records, or counted while lateness is allowed."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.api import (
    OutputTag,
    SlidingEventTimeWindows,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
    total,
)
from engine.api.windows import EventTimeWindows
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.runtime.operators.base import Operator, OperatorContext, RestoredState
from engine.state.key_groups import key_groups, range_of
from engine.state.key_hash import hash_columns
from tests.fakes import Collected, context
from tests.runtime.operators.test_window import ROWS, SCHEMA, brief

LATE = OutputTag("late", "k string, x long, ts long")
TEN = TumblingEventTimeWindows.of(10)
KEYS = ("a", "b", None)
GROUP = dict(zip(KEYS, key_groups(hash_columns([pa.array(KEYS)]), 128).tolist(), strict=True))
Given = tuple[str | None, int | None, int]


class LateWindow:
    """The operators of one windowed stream with lateness or a side output, as the API builds them."""

    def __init__(
        self,
        windows: EventTimeWindows = TEN,
        lateness: int = 0,
        aside: bool = False,
        restored: RestoredState | None = None,
        subtask: int = 0,
        parallelism: int = 1,
    ) -> None:
        env = StreamEnvironment()
        stream = env.from_elements([], "k string, x long, ts long").assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
        )
        windowed = stream.key_by("k").window(windows).allowed_lateness(lateness)
        windowed = windowed.side_output_late_data(LATE) if aside else windowed
        windowed.aggregate(n=count(), sum=total("x"), uid="w")
        self.operators: list[Operator] = [node.operator.build() for node in env.graph.nodes[1:] if node.operator]
        assert len(self.operators) == (1 if aside else 2)
        self.context: OperatorContext = context("w", subtask, parallelism)
        self.out = Collected()
        for operator in self.operators[:-1]:
            operator.open(context("w.combine"), None)
        self.merge = self.operators[-1]
        self.merge.open(self.context, restored)

    def rows(self, *rows: Given) -> list[tuple[Any, ...]]:
        """Returns what is fired at once."""
        before = len(self.out.rows)
        records = [{"k": k, "x": x, "ts": t, "_event_time": t} for k, x, t in rows]
        events: Sequence[Any] = [pa.RecordBatch.from_pylist(records, schema=SCHEMA)]
        for operator in self.operators[:-1]:
            combined = Collected()
            for event in events:
                operator.process(event, combined)
            operator.release(combined)
            events = combined.events
        for event in events:
            self.merge.process(event, self.out)
        return brief(self.out.rows[before:])

    def watermark(self, timestamp_ms: int) -> list[tuple[Any, ...]]:
        before = len(self.out.rows)
        self.merge.on_watermark(timestamp_ms, self.out)
        assert self.out.events[-1] == timestamp_ms
        return brief(self.out.rows[before:])

    @property
    def late(self) -> int:
        return self.context.counters.get("late:w", 0)

    @property
    def aside(self) -> list[Given]:
        assert {name for name, _ in self.out.aside} <= {"late"}
        rows = [row for _, batch in self.out.aside for row in batch.to_pylist()]
        assert all(row["_event_time"] == row["ts"] for row in rows)
        return [(row["k"], row["x"], row["ts"]) for row in rows]


def restored(before: list[LateWindow], subtask: int = 0, parallelism: int = 1, **options: Any) -> LateWindow:
    """Returns a subtask of the next version or attempt, with its key groups of the state of these."""
    snapshots = [window.merge.snapshot(1) for window in before]
    groups = range_of(subtask, parallelism, 128)
    tables = [part.table() for taken in snapshots if taken for part in taken.parts]
    mine = [
        table.filter(pa.array([GROUP[k] in groups for k in table["k"].to_pylist()], pa.bool_())) for table in tables
    ]
    state = RestoredState([taken.inline for taken in snapshots if taken], [("panes", table) for table in mine])
    return LateWindow(restored=state, subtask=subtask, parallelism=parallelism, **options)


@pytest.mark.promise("B7", "A8")
def test_late_records_go_whole_to_the_side_output_and_are_not_counted_as_dropped() -> None:
    window = LateWindow(aside=True)
    window.rows(("a", 1, 5), ("a", 2, 15))
    assert window.watermark(9) == [("a", 0, 1, 1)]
    window.rows(("a", 7, 5), ("b", None, 9), ("b", 8, 10), (None, 9, -3))
    assert window.aside == [("a", 7, 5), ("b", None, 9), (None, 9, -3)]
    assert window.late == 0
    assert window.watermark(MAX_WATERMARK) == [("a", 10, 1, 2), ("b", 10, 1, 8)]


@pytest.mark.promise("B7")
def test_a_late_record_fires_its_window_again_for_its_key_until_the_lateness_is_over() -> None:
    window = LateWindow(lateness=20)
    window.rows(("a", 1, 5), ("b", 1, 6))
    assert window.watermark(9) == [("a", 0, 1, 1), ("b", 0, 1, 1)]
    assert window.rows(("a", 2, 7), ("a", 3, 8)) == [("a", 0, 3, 6)]
    assert window.rows((None, 4, 0)) == [(None, 0, 1, 4)]
    assert window.watermark(28) == []
    assert window.rows(("b", 4, 9)) == [("b", 0, 2, 5)]
    window.watermark(29)  # end - 1 + lateness: the window is forgotten
    assert window.rows(("b", 4, 9)) == [] and window.late == 1
    assert len(window.merge._panes) == 0
    assert window.watermark(MAX_WATERMARK) == []


@pytest.mark.promise("B7")
def test_a_late_record_fires_those_windows_again_that_have_fired_and_are_not_forgotten() -> None:
    window = LateWindow(SlidingEventTimeWindows.of(30, 10), lateness=10)
    window.rows(("a", 1, 5))
    assert window.watermark(20) == [("a", -10, 1, 1), ("a", -20, 1, 1)]
    assert window.rows(("a", 2, 6)) == [("a", -10, 2, 3)]  # the window from -20 is forgotten at 19
    assert window.watermark(29) == [("a", 0, 2, 3)]
    assert window.rows(("a", 4, 7)) == [("a", 0, 3, 7)]
    window.watermark(39)
    assert window.rows(("a", 8, 7)) == [] and window.late == 1


@pytest.mark.promise("B7")
def test_records_that_are_later_than_allowed_go_to_the_side_output() -> None:
    window = LateWindow(lateness=5, aside=True)
    window.rows(("a", 1, 5))
    window.watermark(12)
    assert window.rows(("a", 2, 6)) == [("a", 0, 2, 3)]
    window.watermark(14)
    assert window.rows(("a", 4, 7)) == []
    assert window.aside == [("a", 4, 7)]


@pytest.mark.promise("B7", "C3")
def test_a_window_that_has_fired_is_kept_through_a_restore_and_does_not_fire_by_itself_again() -> None:
    window = LateWindow(lateness=20)
    window.rows(("a", 1, 5), ("b", 1, 15))
    window.watermark(9)
    again = restored([window], lateness=20)
    assert again.rows(("a", 2, 6)) == [("a", 0, 2, 3)]
    assert again.watermark(MAX_WATERMARK) == [("b", 10, 1, 1)]


@pytest.mark.promise("B7", "D8")
def test_with_more_lateness_than_before_a_window_that_was_forgotten_stays_so() -> None:
    window = LateWindow()
    window.rows(("a", 1, 5), ("a", 1, 15))
    window.watermark(9)
    longer = restored([window], lateness=100)
    assert longer.rows(("a", 2, 6)) == [] and longer.late == 1
    longer.watermark(19)
    assert longer.rows(("a", 2, 16)) == [("a", 10, 2, 3)]
    assert restored([longer], lateness=100).rows(("a", 2, 6), ("a", 4, 17)) == [("a", 10, 3, 7)]


@pytest.mark.promise("B7", "D8")
def test_with_less_lateness_than_before_windows_that_were_kept_are_forgotten() -> None:
    window = LateWindow(lateness=100)
    window.rows(("a", 1, 5), ("a", 1, 15))
    window.watermark(12)
    shorter = restored([window])
    assert shorter.rows(("a", 2, 6)) == [] and shorter.late == 1
    assert shorter.watermark(MAX_WATERMARK) == [("a", 10, 1, 1)]


SHAPES = st.sampled_from([TEN, SlidingEventTimeWindows.of(20, 10), SlidingEventTimeWindows.of(6, 9, 2)])
STEPS = st.tuples(st.lists(ROWS, max_size=8), st.integers(1, 3), st.lists(st.integers(0, 12), min_size=3, max_size=3))


@pytest.mark.promise("B7", "D7")
@given(st.lists(STEPS, max_size=6), SHAPES, st.sampled_from([0, 7, 25]), st.booleans())
@example(
    [([], 1, [6, 0, 0]), ([("a", 1, -11), ("a", 2, -14)], 1, [6, 0, 0])], SlidingEventTimeWindows.of(6, 9, 2), 7, False
)  # two panes of one window in one batch: it fires once
def test_every_result_is_that_of_a_plain_model_over_any_rescaling(steps, windows, lateness, aside) -> None:
    """Each step restores at some parallelism, gives each subtask its rows, and then a watermark of its own."""
    spans, options = windows.spans, {"windows": windows, "lateness": lateness, "aside": aside}
    clock = dict.fromkeys(KEYS, MIN_WATERMARK)
    held: dict[tuple[str | None, int], list[int | None]] = {}
    late: list[Given] = []
    found, dropped, wanted = [], 0, []
    before, base = [LateWindow(**options)], -40
    for rows, parallelism, moves in [*steps, ([], 1, [None])]:
        now = [restored(before, subtask, parallelism, **options) for subtask in range(parallelism)]
        for subtask, window in enumerate(now):
            mine = [row for row in rows if GROUP[row[0]] in range_of(subtask, parallelism, 128)]
            found += window.rows(*mine)
            again = set()
            for k, x, t in mine:
                starts = [s for s in range(t - 60, t + 1) if (s - spans.offset_ms) % spans.slide_ms == 0]
                starts = [s for s in starts if s <= t < s + spans.size_ms]
                kept = [s for s in starts if s + spans.size_ms - 1 + lateness > clock[k]]
                if starts and not kept:
                    late.append((k, x, t))
                for s in kept:
                    held.setdefault((k, s), []).append(x)
                    if s + spans.size_ms - 1 <= clock[k]:
                        again.add((k, s))
            wanted += [result(held, pair) for pair in again]
            move = moves[subtask]
            to = MAX_WATERMARK if move is None else base + move * 5
            found += window.watermark(to)
            for k in KEYS:
                if GROUP[k] in range_of(subtask, parallelism, 128):
                    due = [(key, s) for key, s in held if key == k and clock[k] < s + spans.size_ms - 1 <= to]
                    wanted += [result(held, pair) for pair in due]
                    clock[k] = max(clock[k], to)
            dropped += window.late + len(window.aside)
            if aside:
                assert not window.late
        before = now
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert dropped == len(late)


def result(held: dict[tuple[str | None, int], list[int | None]], pair: tuple[str | None, int]) -> tuple[Any, ...]:
    values = [x for x in held[pair] if x is not None]
    return (*pair, len(held[pair]), sum(values) if values else None)
