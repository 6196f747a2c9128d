"""Tumbling windows (B4): [start, end) from the epoch, fired at end − 1 ms, late rows dropped and counted."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count, total
from engine.api.windows import EventTimeWindows
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.runtime.operators import window as window_module
from engine.runtime.operators.base import OperatorContext, RestoredState
from engine.runtime.operators.window import WindowMerge
from engine.runtime.operators.window_combine import WindowCombine
from engine.state.key_groups import key_groups, range_of
from engine.state.key_hash import hash_columns
from tests.fakes import Collected, context

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64()), ("ts", pa.int64()), ("_event_time", pa.int64())])
ROWS = st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(-9, 9), st.integers(-40, 40))


class Window:
    """Combine and merge of one windowed stream, as the API builds them."""

    def __init__(
        self,
        windows: int | EventTimeWindows = 10,
        restored: RestoredState | None = None,
        subtask: int = 0,
        parallelism: int = 1,
    ) -> None:
        env = StreamEnvironment()
        stream = env.from_elements([], "k string, x long, ts long").assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
        )
        assigner = TumblingEventTimeWindows.of(windows) if isinstance(windows, int) else windows
        windowed = stream.key_by("k").window(assigner)
        self.schema = windowed.aggregate(n=count(), sum=total("x"), uid="w").schema
        combine, merge = (node.operator.build() for node in env.graph.nodes[1:] if node.operator)
        assert isinstance(combine, WindowCombine) and isinstance(merge, WindowMerge)
        self.combine, self.merge = combine, merge
        self.context: OperatorContext = context("w", subtask, parallelism)
        self.out = Collected()
        combine.open(context("w.combine"), None)
        merge.open(self.context, restored)

    def rows(self, *rows: tuple[str | None, int | None, int]) -> None:
        records = [{"k": k, "x": x, "ts": t, "_event_time": t} for k, x, t in rows]
        partials = Collected()
        self.combine.process(pa.RecordBatch.from_pylist(records, schema=SCHEMA), partials)
        self.combine.release(partials)
        for partial in partials.events:
            assert isinstance(partial, pa.RecordBatch)
            self.merge.process(partial, self.out)

    def watermark(self, timestamp_ms: int) -> list[dict[str, Any]]:
        """What it fires; the watermark has to come after it (B3)."""
        before = len(self.out.events)
        self.merge.on_watermark(timestamp_ms, self.out)
        assert self.out.events[-1] == timestamp_ms
        fired = self.out.events[before:-1]
        assert all(isinstance(event, pa.RecordBatch) and event.schema == self.schema for event in fired)
        return [row for event in fired for row in event.to_pylist()]

    @property
    def late(self) -> int:
        return self.context.counters.get("late:w", 0)


def brief(rows: list[dict[str, Any]]) -> list[tuple[str, int, int, int]]:
    """(key, start in ms, rows, sum), sorted."""
    found = []
    for row in rows:
        start = int((row["window_start"] - EPOCH).total_seconds() * 1000)
        found.append((row["k"], start, row["n"], row["sum"]))
    return sorted(found, key=repr)


@pytest.mark.promise("B4")
def test_a_window_fires_when_the_watermark_reaches_its_end_minus_one() -> None:
    window = Window()
    window.rows(("a", 1, 0), ("a", 2, 9), ("a", 4, 10))
    assert window.watermark(8) == []
    assert brief(window.watermark(9)) == [("a", 0, 2, 3)]
    assert window.watermark(18) == []
    assert brief(window.watermark(19)) == [("a", 10, 1, 4)]
    assert window.watermark(MAX_WATERMARK) == []


@pytest.mark.promise("B4")
def test_a_result_names_its_window_and_its_event_time_is_the_end_minus_one() -> None:
    window = Window(10_000)
    window.rows(("a", 5, 12_345))
    (row,) = window.watermark(MAX_WATERMARK)
    assert row == {
        "k": "a",
        "window_start": EPOCH + dt.timedelta(seconds=10),
        "window_end": EPOCH + dt.timedelta(seconds=20),
        "n": 1,
        "sum": 5,
        "_event_time": 19_999,
    }


@pytest.mark.promise("B4")
def test_windows_before_1970_are_aligned_to_the_epoch_too() -> None:
    window = Window()
    window.rows(("a", 1, -1), ("a", 2, -10), ("a", 4, -11), ("a", 8, 0))
    assert brief(window.watermark(-12)) == []
    assert brief(window.watermark(-11)) == [("a", -20, 1, 4)]
    assert brief(window.watermark(-1)) == [("a", -10, 2, 3)]
    assert brief(window.watermark(9)) == [("a", 0, 1, 8)]


@pytest.mark.promise("B4", "B7")
def test_a_late_row_counts_while_its_window_is_open_and_is_dropped_and_counted_after() -> None:
    window = Window()
    window.rows(("a", 1, 15))
    window.watermark(14)
    window.rows(("a", 2, 12), ("a", 2, 9), ("b", 2, 3), ("b", 2, 3))  # 12: late, but its window is open
    assert window.late == 3
    assert brief(window.watermark(19)) == [("a", 10, 2, 3)]
    window.rows(("a", 7, 19), ("a", 7, 20))
    assert window.late == 4
    assert brief(window.watermark(29)) == [("a", 20, 1, 7)]


@pytest.mark.promise("B4")
def test_windows_fire_oldest_first() -> None:
    window = Window()
    window.rows(("a", 1, 25), ("a", 1, 5), ("a", 1, 15))
    fired = window.watermark(MAX_WATERMARK)
    assert [row["_event_time"] for row in fired] == [9, 19, 29]


def test_a_watermark_that_does_not_advance_is_passed_on_and_fires_nothing() -> None:
    window = Window()
    window.rows(("a", 1, 5))
    window.watermark(3)
    assert window.watermark(3) == []
    assert window.watermark(1) == []
    window.rows(("a", 1, 2))
    assert window.late == 0


@pytest.mark.promise("B4")
@given(
    st.lists(st.lists(ROWS, max_size=8), max_size=6),
    st.integers(1, 25),
)
def test_windows_equal_a_plain_computation_with_a_watermark_behind_each_batch(batches, size) -> None:
    window = Window(size)
    expected: dict[tuple[Any, int], list[int | None]] = {}
    clock, late, fired = MIN_WATERMARK, 0, []
    for rows in batches:
        window.rows(*rows)
        for k, x, t in rows:
            start = t // size * size
            if start + size - 1 <= clock:
                late += 1
            else:
                expected.setdefault((k, start), []).append(x)
        if rows:
            clock = max(clock, max(t for _, _, t in rows) - 5)
            fired += window.watermark(clock)
    fired += window.watermark(MAX_WATERMARK)
    sums = {key: [x for x in xs if x is not None] for key, xs in expected.items()}
    assert brief(fired) == sorted(
        ((k, start, len(xs), sum(sums[k, start]) if sums[k, start] else None) for (k, start), xs in expected.items()),
        key=repr,
    )
    assert window.late == late


@pytest.mark.promise("B4")
def test_a_record_without_an_event_time_is_in_no_window_and_is_counted() -> None:
    """Spark's `window()` leaves out rows whose time is null, too."""
    window = Window()
    records = [{"k": "a", "x": x, "ts": t, "_event_time": t} for x, t in ((1, None), (2, 5), (4, None))]
    out = Collected()
    window.combine.open(window.context, None)
    window.combine.process(pa.RecordBatch.from_pylist(records, schema=SCHEMA), out)
    assert [(row["k"], row["_rows"], row["x$sum"]) for row in out.rows] == [("a", 1, 2)]
    assert window.context.counters == {"untimed:w": 2}
    window.combine.process(pa.RecordBatch.from_pylist(records[:1], schema=SCHEMA), out)
    assert len(out.events) == 1


def test_an_empty_batch_makes_no_partial() -> None:
    out = Collected()
    Window().combine.process(pa.RecordBatch.from_pylist([], schema=SCHEMA), out)
    assert out.events == []


def test_a_large_window_leaves_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "FIRE_ROWS", 10)
    window = Window()
    window.rows(*((f"k{n}", n, 5) for n in range(25)))
    window.watermark(9)
    sizes = [event.num_rows for event in window.out.events if isinstance(event, pa.RecordBatch)]
    assert sizes == [10, 10, 5]


@pytest.mark.promise("B7", "C3")
def test_a_snapshot_holds_open_windows_and_the_watermark_and_nothing_that_came_after_it() -> None:
    window = Window()
    window.rows(("a", 1, 5), ("b", 1, 15))
    window.watermark(9)
    snapshot = window.merge.snapshot(1)
    window.rows(("b", 100, 15))
    window.watermark(MAX_WATERMARK)
    (part,) = snapshot.parts
    assert (part.name, part.keys) == ("panes", ("k",))
    restored = Window(restored=RestoredState([snapshot.inline], [("panes", part.table())]))
    restored.rows(("a", 1, 6))  # its window was published before the snapshot
    assert restored.late == 1
    restored.rows(("b", 2, 16))
    assert brief(restored.watermark(MAX_WATERMARK)) == [("b", 10, 2, 3)]


@pytest.mark.promise("D7")
def test_restored_from_several_subtasks_it_merges_their_panes() -> None:
    windows = [Window(), Window()]
    snapshots = []
    for n, window in enumerate(windows):
        window.rows((f"k{n}", n, 5), ("both", 1, 25))
        snapshots.append(window.merge.snapshot(1))
    tables = [("panes", part.table()) for snapshot in snapshots for part in snapshot.parts]
    restored = Window(restored=RestoredState([snapshot.inline for snapshot in snapshots], tables))
    assert brief(restored.watermark(MAX_WATERMARK)) == [("both", 20, 2, 2), ("k0", 0, 1, 0), ("k1", 0, 1, 1)]


def test_an_empty_state_is_an_empty_table_and_restores_to_nothing() -> None:
    snapshot = Window().merge.snapshot(1)
    (part,) = snapshot.parts
    assert part.table().num_rows == 0
    assert snapshot.inline == {"watermarks": [[0, 128, MIN_WATERMARK]]}
    restored = Window(restored=RestoredState([snapshot.inline], [("panes", part.table())]))
    assert restored.watermark(MAX_WATERMARK) == []


# --- watermarks per key group ---

KEYS = [f"k{n}" for n in range(12)]
GROUP = dict(zip(KEYS, key_groups(hash_columns([pa.array(KEYS)]), 128).tolist(), strict=True))
LOW = [key for key in KEYS if GROUP[key] < 64]
HIGH = [key for key in KEYS if GROUP[key] >= 64]


def restored(windows: list[Window], subtask: int, parallelism: int) -> Window:
    """The state of these windows at a barrier, restored as the snapshot does it: each subtask gets its key groups."""
    snapshots = [window.merge.snapshot(1) for window in windows]
    groups = range_of(subtask, parallelism, 128)
    tables = [part.table() for taken in snapshots for part in taken.parts]
    mine = [
        table.filter(pa.array([GROUP[k] in groups for k in table["k"].to_pylist()], pa.bool_())) for table in tables
    ]
    state = RestoredState([taken.inline for taken in snapshots], [("panes", table) for table in mine])
    return Window(10, state, subtask, parallelism)


@pytest.mark.promise("B7", "D7")
def test_a_window_that_fired_in_one_of_two_joined_subtasks_stays_fired_and_fires_once_for_the_other() -> None:
    """Idle inputs: at one barrier the first subtask is at 39, the second at 9. Both are restored as one."""
    first, second = Window(10, None, 0, 2), Window(10, None, 1, 2)
    first.rows(*((key, 1, t) for key in LOW for t in (5, 25, 45)))
    second.rows(*((key, 1, t) for key in HIGH for t in (5, 25, 45)))
    assert len(first.watermark(39)) == 2 * len(LOW) and len(second.watermark(9)) == len(HIGH)
    one = restored([first, second], 0, 1)
    one.rows(*((key, 7, 26) for key in KEYS))  # the window from 20 is closed for the keys of the first only
    assert one.late == len(LOW)
    assert brief(one.watermark(29)) == sorted((key, 20, 2, 8) for key in HIGH)
    one.rows(*((key, 7, 36) for key in KEYS))
    assert one.late == 2 * len(LOW)
    one.rows(*((key, 7, 27) for key in HIGH))
    assert one.late == 2 * len(LOW) + len(HIGH)
    assert brief(one.watermark(39)) == sorted((key, 30, 1, 7) for key in HIGH)
    assert brief(one.watermark(MAX_WATERMARK)) == sorted((key, 40, 1, 1) for key in KEYS)


@pytest.mark.promise("B7", "D7")
def test_watermarks_of_key_groups_survive_two_restores_in_a_row() -> None:
    first, second = Window(10, None, 0, 2), Window(10, None, 1, 2)
    first.watermark(39)
    second.watermark(9)
    one = restored([first, second], 0, 1)
    one.watermark(19)
    again = [restored([one], subtask, 3) for subtask in range(3)]
    for subtask, window in enumerate(again):
        mine = [key for key in KEYS if GROUP[key] in range_of(subtask, 3, 128)]
        window.rows(*((key, 7, 26) for key in mine))
        assert window.late == len([key for key in mine if key in LOW])


@pytest.mark.promise("B7", "D7")
@given(
    st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(0, 60), min_size=4, max_size=4)), min_size=1, max_size=5)
)
def test_no_window_is_published_twice_for_a_key_over_any_rescaling(steps: list[tuple[int, list[int]]]) -> None:
    """Each step restores at some parallelism, gives every subtask rows of all windows and a watermark of its own."""
    before: list[Window] = []
    published: list[tuple[str, int]] = []
    closed = dict.fromkeys(KEYS, MIN_WATERMARK)
    for parallelism, clocks in [*steps, (1, [MAX_WATERMARK])]:
        now = [restored(before, subtask, parallelism) for subtask in range(parallelism)]
        for subtask, window in enumerate(now):
            mine = [key for key in KEYS if GROUP[key] in range_of(subtask, parallelism, 128)]
            window.rows(*((key, 1, start) for key in mine for start in range(0, 70, 10)))
            open_windows = sum(start + 9 > closed[key] for key in mine for start in range(0, 70, 10))
            assert window.late == 7 * len(mine) - open_windows
            fired = brief(window.watermark(clocks[subtask]))
            published += [(key, start) for key, start, _, _ in fired]
            for key in mine:
                closed[key] = max(closed[key], clocks[subtask])
        before = now
    assert sorted(published) == sorted((key, start) for key in KEYS for start in range(0, 70, 10))
