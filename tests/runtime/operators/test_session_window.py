"""Session windows of built-in aggregates (B4, B7): equal to a plain model on any stream, restored anywhere."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import EventTimeSessionWindows, StreamEnvironment, WatermarkStrategy, count, first, total
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.state.key_groups import range_of
from engine.state.windows import session_runs
from engine.state.windows.session_plan import SessionPlan
from engine.state.windows.session_runs import SessionRuns
from tests.runtime.operators.test_late_windows import GROUP, KEYS, Given, LateWindow, restored
from tests.runtime.operators.test_window import EPOCH, ROWS

GAP = EventTimeSessionWindows.with_gap(10)


def told(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """(key, start, end, rows, sum), in order."""

    def ms(moment: Any) -> int:
        return round((moment - EPOCH).total_seconds() * 1000)

    assert all(row["_event_time"] == ms(row["window_end"]) - 1 for row in rows)
    return [(row["k"], ms(row["window_start"]), ms(row["window_end"]), row["n"], row["sum"]) for row in rows]


def sessions(**options: Any) -> LateWindow:
    return LateWindow(windows=GAP, **options)


@pytest.mark.promise("B4")
def test_a_session_ends_a_gap_after_its_last_record_and_fires_at_its_end_minus_one() -> None:
    window = sessions()
    window.rows(("a", 1, 5), ("a", 2, 15), ("a", 4, 26), ("b", 8, 7))  # 5 and 15 touch, 15 and 26 do not
    window.watermark(23)
    assert told(window.out.rows) == [("b", 7, 17, 1, 8)]
    window.watermark(24)
    assert told(window.out.rows)[1:] == [("a", 5, 25, 2, 3)]
    window.watermark(MAX_WATERMARK)
    assert told(window.out.rows)[2:] == [("a", 26, 36, 1, 4)]


@pytest.mark.promise("B4")
def test_a_record_between_two_sessions_joins_them() -> None:
    window = sessions()
    window.rows(("a", 1, 0), ("a", 2, 20))
    window.watermark(8)
    window.rows(("a", 4, 10))
    window.watermark(MAX_WATERMARK)
    assert told(window.out.rows) == [("a", 0, 30, 3, 7)]


@pytest.mark.promise("B7")
def test_a_late_record_counts_if_it_joins_an_open_session_and_is_late_else() -> None:
    window = sessions()
    window.rows(("a", 1, 20))
    window.watermark(25)
    window.rows(("a", 2, 12), ("a", 4, 5), ("b", 8, 12))  # 12 joins 20, 5 joins 12; b has no session
    assert window.late == 1
    window.watermark(MAX_WATERMARK)
    assert told(window.out.rows) == [("a", 5, 30, 3, 7)]


@pytest.mark.promise("B7")
def test_with_lateness_a_session_fires_again_and_a_record_may_make_it_longer() -> None:
    window = sessions(lateness=10)
    window.rows(("a", 1, 0))
    window.watermark(12)
    window.rows(("a", 2, 1))  # ends at 11, and is over
    window.rows(("a", 4, 9))  # makes it last until 19
    assert told(window.out.rows) == [("a", 0, 10, 1, 1), ("a", 0, 11, 2, 3)]
    window.watermark(27)
    assert told(window.out.rows)[2:] == [("a", 0, 19, 3, 7)]
    window.watermark(28)
    window.rows(("a", 8, 9))
    assert window.late == 1 and len(window.merge._runs) == 0


@pytest.mark.promise("B7")
def test_a_session_that_has_fired_and_became_longer_fires_at_its_new_end_also_if_its_parts_were_merged_before() -> None:
    window = sessions(lateness=100)
    window.rows(("a", 1, 0))
    window.watermark(9)
    window.rows(("a", 2, 5))  # is not over: it makes the session last until 15
    for n in range(session_runs.FANOUT):
        window.rows(("b", 1, 1000 + 50 * n))  # so many runs are merged into one
    window.watermark(14)
    assert told(window.out.rows) == [("a", 0, 10, 1, 1), ("a", 0, 15, 2, 3)]


@pytest.mark.promise("B7")
def test_a_late_record_fires_only_the_session_again_that_it_joins() -> None:
    window = sessions(lateness=100)
    window.rows(("a", 1, 0), ("a", 2, 50))
    window.watermark(70)
    window.rows(("a", 4, 1))
    assert told(window.out.rows)[2:] == [("a", 0, 11, 2, 5)]


@pytest.mark.promise("C3")
def test_a_snapshot_of_sessions_does_not_change_with_what_comes_or_goes_later() -> None:
    window = sessions()
    window.rows(("a", 1, 0), ("b", 2, 100))
    (part,) = window.merge.snapshot(1).parts
    window.watermark(50)
    window.rows(("c", 4, 200))
    assert told(window.out.rows) == [("a", 0, 10, 1, 1)], "its rows are gone"
    assert sorted(part.table().column("k").to_pylist()) == ["a", "b"]
    (later,) = window.merge.snapshot(2).parts
    assert sorted(later.table().column("k").to_pylist()) == ["b", "c"]


@pytest.mark.promise("B7")
def test_records_of_one_batch_join_each_other_though_they_travelled_ungrouped() -> None:
    window = sessions()
    for _ in range(3):
        window.rows(("x", 1, 100), ("y", 1, 100))  # nothing to group, so that the next batches travel as they are
    assert window.operators[0]._as_they_are > 0
    window.watermark(20)
    window.rows(("a", 2, 5), ("a", 4, 14))  # the first is late by itself
    assert window.late == 0
    window.watermark(23)
    assert told(window.out.rows) == [("a", 5, 24, 2, 6)]


@pytest.mark.promise("B5")
def test_however_many_batches_a_session_has_it_stays_a_few_rows() -> None:
    window = sessions()
    for t in range(80):
        window.rows(("a", 1, t))
        window.watermark(t)
    assert len(window.merge._runs) <= session_runs.FANOUT * 4
    window.watermark(MAX_WATERMARK)
    assert told(window.out.rows) == [("a", 0, 89, 80, 80)]


def test_the_rows_of_one_key_are_found_without_a_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging is what costs: with a watermark behind each batch, it sees each row a bounded number of times."""
    seen = []
    merge = SessionPlan.merge
    monkeypatch.setattr(SessionPlan, "merge", lambda plan, table: seen.append(table.num_rows) or merge(plan, table))
    window = sessions()
    for n in range(32):
        window.rows(*((f"k{n * 10 + m}", 1, n) for m in range(10)))
        window.watermark(n)
    assert sum(seen) < 320 * 4


STEPS = st.tuples(st.lists(ROWS, max_size=8), st.integers(1, 3), st.lists(st.integers(0, 12), min_size=3, max_size=3))


class Model:
    """The sessions of one key: [start, end, values, fired]."""

    def __init__(self, gap: int, lateness: int) -> None:
        self.gap, self.lateness, self.clock = gap, lateness, MIN_WATERMARK
        self.held: list[list[Any]] = []

    def rows(self, rows: list[Given]) -> tuple[list[tuple[Any, ...]], int]:
        """Returns what fires at once, and how many are late."""
        merged: list[list[Any]] = []
        for start, end, values, fired, new in sorted(
            [[*held, False] for held in self.held] + [[t, t + self.gap, [x], False, True] for _, x, t in rows],
            key=lambda one: one[0],
        ):
            if merged and start <= merged[-1][1]:
                into = merged[-1]
                merged[-1] = [into[0], max(into[1], end), into[2] + values, into[3] and fired, into[4] or new]
            else:
                merged.append([start, end, values, fired, new])
        late = [one for one in merged if one[1] - 1 + self.lateness <= self.clock]
        kept = [one for one in merged if one not in late]
        again = [one for one in kept if one[4] and one[1] - 1 <= self.clock]
        self.held = [[*one[:3], one[1] - 1 <= self.clock] for one in kept]
        return [result(one) for one in again], sum(len(one[2]) for one in late)

    def watermark(self, clock: int) -> list[tuple[Any, ...]]:
        self.clock = max(self.clock, clock)
        due = [one for one in self.held if not one[3] and one[1] - 1 <= self.clock]
        for one in due:
            one[3] = True
        self.held = [one for one in self.held if one[1] - 1 + self.lateness > self.clock and clock < MAX_WATERMARK]
        return [result(one) for one in due]


def result(one: list[Any]) -> tuple[Any, ...]:
    values = [x for x in one[2] if x is not None]
    return (one[0], one[1], len(one[2]), sum(values) if values else None)


@pytest.mark.promise("B4", "B7", "D7")
@given(st.lists(STEPS, max_size=7), st.sampled_from([3, 10]), st.sampled_from([0, 9]), st.booleans())
def test_every_result_is_that_of_a_plain_model_over_any_rescaling(steps, gap, lateness, aside) -> None:
    """Each step restores at some parallelism, gives each subtask its rows, and then a watermark of its own."""
    options = {"windows": EventTimeSessionWindows.with_gap(gap), "lateness": lateness, "aside": aside}
    models = {key: Model(gap, lateness) for key in KEYS}
    found, wanted, dropped, late = [], [], 0, 0
    before = [LateWindow(**options)]
    for rows, parallelism, moves in [*steps, ([], 1, [None])]:
        now = [restored(before, subtask, parallelism, **options) for subtask in range(parallelism)]
        for subtask, window in enumerate(now):
            mine = [key for key in KEYS if GROUP[key] in range_of(subtask, parallelism, 128)]
            window.rows(*(row for row in rows if row[0] in mine))
            to = MAX_WATERMARK if moves[subtask] is None else -40 + moves[subtask] * 5
            for key in mine:
                of_key = [row for row in rows if row[0] == key]
                again, lost = models[key].rows(of_key) if of_key else ([], 0)
                late += lost
                wanted += [(key, *one) for one in again]
            window.watermark(to)
            wanted += [(key, *one) for key in mine for one in models[key].watermark(to)]
            found += told(window.out.rows)
            dropped += window.late + len(window.aside)
        before = now
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert dropped == late


def test_state_of_many_keys_merges_level_by_level_to_what_one_merge_gives() -> None:
    """Times far apart too, which no shift by the number of the group may overflow."""
    env = StreamEnvironment()
    stream = env.from_elements([], "k long, x long, ts long").assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    )
    plan = SessionPlan(["k"], {"n": count(), "sum": total("x"), "first": first("x")}, stream.schema, 10)
    random, runs, all_rows = np.random.default_rng(5), SessionRuns(plan), []
    for _ in range(30):
        times = random.integers(-(2**60), 2**60, 40) // 2**54 * 2**54 + random.integers(0, 60, 40)
        columns = [random.integers(0, 9, 40), random.integers(0, 5, 40), times, times]
        all_rows.append(pa.record_batch([pa.array(column) for column in columns], schema=stream.schema))
        table, _ = plan.partial(all_rows[-1])
        runs.append(table, np.zeros(table.num_rows, np.bool_))
    together, _ = plan.partial(pa.Table.from_batches(all_rows).combine_chunks())
    order = [("k", "ascending"), ("_window", "ascending")]
    assert runs.compact(runs.freeze()).sort_by(order).equals(together.sort_by(order))
