"""Rows are held before the exchange (B3, B7, D2): nothing overtakes them that must not, and results stay the same."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
    total,
)
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.runtime.operators import window_combine
from engine.runtime.operators.base import Operator
from engine.runtime.operators.window_combine import WindowCombine
from engine.state.windows.plan import AggregatePlan
from tests.fakes import Collected, context
from tests.runtime.operators.test_window import ROWS, SCHEMA

Given = tuple[str | None, int | None, int]
WINDOWS = st.sampled_from(
    [
        TumblingEventTimeWindows.of(10),
        SlidingEventTimeWindows.of(30, 10),
        SlidingEventTimeWindows.of(5, 20, 3),
        EventTimeSessionWindows.with_gap(7),
    ]
)


def batch(rows: Iterable[Given]) -> pa.RecordBatch:
    records = [{"k": k, "x": x, "ts": t, "_event_time": t} for k, x, t in rows]
    return pa.RecordBatch.from_pylist(records, schema=SCHEMA)


def built(windows: Any = None) -> tuple[WindowCombine, Operator]:
    """Returns the two operators of windows, as the API builds them."""
    env = StreamEnvironment()
    stream = env.from_elements([], "k string, x long, ts long").assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    )
    windowed = stream.key_by("k").window(windows or TumblingEventTimeWindows.of(10))
    windowed.aggregate(n=count(), sum=total("x"), uid="w")
    combine, merge = (node.operator.build() for node in env.graph.nodes[1:] if node.operator)
    assert isinstance(combine, WindowCombine)
    combine.open(context("w.combine"), None)
    merge.open(context("w"), None)
    return combine, merge


class Held:
    """A combine that holds up to 8 rows for each key of its last group, which had one key."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(window_combine, "ROWS_PER_KEY", 8)
        self.combine, self.merge = built()
        self.out = Collected()
        self.send(("a", 1, 5))
        assert self.taken() == [("a", 1)]

    def send(self, *rows: Given) -> None:
        self.combine.process(batch(rows), self.out)

    def taken(self) -> list[Any]:
        """Returns what was emitted since: (key, rows) of each partial, and watermarks."""
        events, self.out.events = self.out.events, []
        found: list[Any] = []
        for event in events:
            if isinstance(event, pa.RecordBatch):
                found += [(row["k"], row["_rows"]) for row in event.to_pylist()]
            else:
                found.append(event)
        return found


def test_rows_are_held_until_there_are_enough_for_each_key_of_the_last_group(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    for _ in range(3):
        held.send(("a", 1, 5), ("b", 1, 6))
    assert held.taken() == []
    held.send(("a", 1, 5), ("b", 1, 6))
    assert held.taken() == [("a", 4), ("b", 4)]
    held.send(*[("a", 1, 5)] * 15)
    assert held.taken() == []
    held.send(("a", 1, 5))
    assert held.taken() == [("a", 16)]


@pytest.mark.promise("D2")
@pytest.mark.parametrize(("batches", "asked"), [(3, [0, 10]), (4, [None]), (20, [None])])
def test_held_batches_that_are_in_one_pane_each_are_grouped_by_their_keys_alone(
    monkeypatch: pytest.MonkeyPatch, batches: int, asked: list[int | None]
) -> None:
    """The fourth is in two panes; with the others there are too many panes to look at one after the other."""
    held = [[("a", 1, 5), ("b", 1, 6)], [("a", 1, 15)], [("a", 1, 7)], [("a", 1, 18), ("a", 1, 22)]]
    if batches > len(held):
        held = [[("a", 1, 10 * number)] for number in range(batches)]
    panes: list[int | None] = []
    partial = AggregatePlan.partial

    def spied(self: AggregatePlan, rows: Any, windows: Any) -> pa.Table:
        panes.append(windows if isinstance(windows, int) else None)
        return partial(self, rows, windows)

    combine, _ = built()
    rows = pa.Table.from_batches([batch(of) for of in held[:batches]])
    monkeypatch.setattr(AggregatePlan, "partial", spied)
    got = combine._partials.grouped(rows)
    assert panes == asked
    counted = Counter((k, t // 10 * 10) for of in held[:batches] for k, _, t in of)
    assert Counter({(row["k"], row["_window"]): row["_rows"] for row in got.to_pylist()}) == counted


@pytest.mark.promise("B3")
def test_a_watermark_passes_held_rows_unless_one_of_their_windows_is_due_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    held.send(("a", 1, 15), ("b", 1, 25))
    held.combine.on_watermark(18, held.out)
    assert held.taken() == [18]
    held.combine.on_watermark(19, held.out)
    assert held.taken() == [("a", 1), ("b", 1), 19]


@pytest.mark.promise("B3", "B4")
def test_a_row_that_prolongs_a_session_is_sent_before_the_session_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session of the first row ends at 7. The second one has a session of its own until 12, and joins it."""
    monkeypatch.setattr(window_combine, "ROWS_PER_KEY", 50)
    for at, sessions in ((5, [2]), (7, [2]), (8, [1, 1])):
        combine, merge = built(EventTimeSessionWindows.with_gap(7))
        partials, out = Collected(), Collected()
        combine.process(batch([("a", 1, 0)]), partials)
        combine.process(batch([("a", 1, at)]), partials)
        for watermark in (at - 2, at - 1, 7, MAX_WATERMARK):
            combine.on_watermark(watermark, partials)
        for event in partials.events:
            if isinstance(event, pa.RecordBatch):
                merge.process(event, out)
            else:
                merge.on_watermark(event, out)
        assert [row["n"] for row in out.rows] == sessions


@pytest.mark.promise("B7")
def test_a_row_whose_window_is_due_already_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    held.combine.on_watermark(19, held.out)
    held.send(("a", 1, 20))
    assert held.taken() == [19]
    held.send(("b", 1, 19))
    assert held.taken() == [("a", 1), ("b", 1)]


@pytest.mark.promise("B3", "B7")
def test_an_older_batch_is_sent_before_its_window_fires_though_a_newer_one_is_held_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Held(monkeypatch)
    held.send(("a", 1, 5))
    held.send(("b", 1, 500))
    assert held.taken() == []
    held.combine.on_watermark(9, held.out)
    assert held.taken() == [("a", 1), ("b", 1), 9]


@pytest.mark.parametrize(
    ("limit", "value", "batches"),
    [("HELD_ROWS", 3, 3), ("HELD_BYTES", 2 * batch([("a", 1, 5)]).nbytes, 2)],  # also of columns not needed: "ts"
)
def test_so_many_rows_and_bytes_are_held_at_most(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int, batches: int
) -> None:
    monkeypatch.setattr(window_combine, limit, value)
    held = Held(monkeypatch)
    for _ in range(batches - 1):
        held.send(("a", 1, 5))
    assert held.taken() == []
    held.send(("a", 1, 5))
    assert held.taken() == [("a", batches)]


def test_rows_travel_as_they_are_while_the_most_that_are_held_leave_most_rows_and_it_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(window_combine, "HELD_ROWS", 4)
    held = Held(monkeypatch)
    held.send(("a", 1, 5), ("b", 1, 5), ("c", 1, 5), ("c", 1, 5))
    assert held.taken() == [("a", 1), ("b", 1), ("c", 2)]
    for _ in range(window_combine.AGAIN):
        held.send(*[("a", 1, 5)] * 4)
        assert held.taken() == [("a", 1)] * 4
    held.send(*[("a", 1, 5)] * 4)
    assert held.taken() == [("a", 4)]


def test_one_early_release_does_not_stop_grouping_and_two_in_a_row_do(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    held.send(("a", 1, 5), ("b", 1, 5))
    held.combine.release(held.out)  # before a barrier
    held.send(*[("a", 1, 5)] * 8)
    assert held.taken() == [("a", 1), ("b", 1), ("a", 8)]
    for _ in range(2):
        held.send(("a", 1, 5), ("b", 1, 5))
        held.combine.release(held.out)
    held.taken()
    held.send(("a", 1, 5), ("a", 1, 5))
    assert held.taken() == [("a", 1), ("a", 1)]


@pytest.mark.promise("A3")
def test_batches_with_dictionaries_of_their_own_and_without_are_grouped_by_their_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Held(monkeypatch)
    for keys, encoded in ((["a", "b", None], True), (["b", "c", "b"], True), (["c", None], False)):
        plain = batch([(key, 1, 5) for key in keys])
        column = plain.column("k").dictionary_encode() if encoded else plain.column("k")
        held.combine.process(plain.set_column(0, "k", column), held.out)
    held.combine.release(held.out)
    assert held.taken() == [("a", 1), ("b", 3), (None, 1), ("c", 1), ("c", 1), (None, 1)]


@pytest.mark.promise("B4", "B7")
@given(
    st.lists(
        st.one_of(
            st.lists(ROWS, max_size=8),
            st.integers(-45, 45),
            st.just("release"),
        ),
        max_size=12,
    ),
    WINDOWS,
    st.sampled_from([0, 2, 50]),
)
def test_results_and_late_rows_are_those_of_rows_that_are_not_held(
    steps: list[Any], windows: Any, per_key: int
) -> None:
    """The steps of one input: rows, watermarks that never go back, and releases before barriers."""
    fired = []
    for held in (0, per_key):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(window_combine, "ROWS_PER_KEY", held)
            combine, merge = built(windows)
            partials, out, clock = Collected(), Collected(), MIN_WATERMARK
            seen: list[Any] = []
            for step in [*steps, MAX_WATERMARK]:
                if isinstance(step, list):
                    combine.process(batch(step), partials)
                elif step == "release":
                    combine.release(partials)
                else:
                    clock = max(clock, step)
                    combine.on_watermark(clock, partials)
                for event in partials.events:
                    if isinstance(event, pa.RecordBatch):
                        merge.process(event, out)
                    else:
                        merge.on_watermark(event, out)
                        rows = sorted((sorted(row.items(), key=repr) for row in out.rows), key=repr)
                        seen.append((event, rows, merge.context.counters.get("late:w", 0)))
                        out.events = []
                partials.events = []
            assert not combine._held, "the end releases all"
            fired.append(seen)
    assert fired[0] == fired[1]
