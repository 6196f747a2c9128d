"""Columnar window state: what a snapshot refers to stays as it was (C3), and panes hold every row once."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.state.windows import plan
from engine.state.windows.aggregates import count, total
from engine.state.windows.panes import FANOUT, Panes
from engine.state.windows.plan import ROWS, WINDOW, AggregatePlan

SCHEMA = pa.schema([("k", pa.int64()), ("x", pa.int64())])
PLAN = AggregatePlan(["k"], {"n": count(), "sum": total("x")}, SCHEMA)


def partial(start: int, *rows: tuple[int, int]) -> pa.Table:
    return PLAN.partial(pa.RecordBatch.from_pylist([{"k": k, "x": x} for k, x in rows], schema=SCHEMA), start)


def results(table: pa.Table) -> dict[int, tuple[int, int]]:
    return {row["k"]: (row["n"], row["sum"]) for row in PLAN.finish(table).to_pylist()}


@given(st.lists(st.tuples(st.sampled_from([0, 10, 20]), st.integers(0, 3), st.integers(-9, 9)), max_size=400))
def test_a_pane_gives_every_row_exactly_once_however_many_levels_it_has(rows) -> None:
    panes = Panes(PLAN)
    for start, k, x in rows:
        panes.append(start, partial(start, (k, x)))
    for start in panes.starts():
        expected: dict[int, tuple[int, int]] = {}
        for s, k, x in rows:
            if s == start:
                n, sum_ = expected.get(k, (0, 0))
                expected[k] = (n + 1, sum_ + x)
        popped = panes.between(start, start + 10)
        panes.drop(start)
        assert set(popped.column(WINDOW).to_pylist()) == {start}
        assert results(popped) == expected
    assert len(panes) == 0


@pytest.mark.promise("C3")
@given(st.integers(0, 130), st.integers(0, 130))
def test_what_a_snapshot_refers_to_is_not_changed_by_later_appends(before, after) -> None:
    panes = Panes(PLAN)
    for n in range(before):
        panes.append(n % 3 * 10, partial(n % 3 * 10, (n % 5, n)))
    frozen = panes.freeze()
    then = [[run.to_pylist() for run in pane.runs] for pane in frozen]
    for n in range(after):
        panes.append(n % 3 * 10, partial(n % 3 * 10, (n % 5, 1000)))
    for start in panes.starts():
        panes.between(start, start + 10)
        panes.drop(start)
    assert [[run.to_pylist() for run in pane.runs] for pane in frozen] == then
    assert sum(sum(pane.compact().column(ROWS).to_pylist()) for pane in frozen) == before


def test_runs_stay_few_however_many_are_appended() -> None:
    panes = Panes(PLAN)
    for n in range(1000):
        panes.append(0, partial(0, (n % 7, 1)))
    (pane,) = panes.freeze()
    assert len(pane.runs) < sum(FANOUT)


def test_what_an_upload_has_compacted_stands_for_its_runs_from_then_on() -> None:
    panes = Panes(PLAN)
    for n in range(7):
        panes.append(0, partial(0, (n, 1)))
    (first,) = panes.freeze()
    panes.append(0, partial(0, (0, 1)))  # while the upload runs
    first.compact()
    (second,) = panes.freeze()
    assert [run.num_rows for run in second.runs] == [7, 1]
    (third,) = panes.freeze()  # nothing new, and the second upload failed
    assert third.runs == second.runs
    assert results(panes.between(0, 10)) == {0: (2, 2), **{n: (1, 1) for n in range(1, 7)}}


@given(st.lists(st.sampled_from(["row", "barrier", "upload"]), max_size=60))
def test_every_row_is_there_once_whenever_barriers_come_and_uploads_run(steps) -> None:
    panes, frozen, rows = Panes(PLAN), [], 0
    for step in [*steps, "row"]:
        if step == "row":
            panes.append(0, partial(0, (rows % 5, 1)))
            rows += 1
        elif step == "barrier":
            frozen += [(pane, rows) for pane in panes.freeze()]
        elif frozen:
            pane, before = frozen.pop(0)
            assert sum(pane.compact().column(ROWS).to_pylist()) == before
    assert sum(n for n, _ in results(panes.between(0, 10)).values()) == rows


def test_the_panes_of_a_window_are_merged_and_may_be_asked_for_again() -> None:
    panes = Panes(PLAN)
    for start in (20, -10, 0, 10):
        panes.append(start, partial(start, (1, 1), (start, 5)))
    assert panes.starts() == [-10, 0, 10, 20]
    assert results(panes.between(0, 20)) == {1: (2, 2), 0: (1, 5), 10: (1, 5)}
    panes.append(10, partial(10, (10, 7)))  # a late row
    assert results(panes.between(0, 20)) == {1: (2, 2), 0: (1, 5), 10: (2, 12)}
    assert results(panes.between(10, 30)) == {1: (2, 2), 10: (2, 12), 20: (1, 5)}
    panes.drop(-10)
    assert len(panes) == 3


def test_an_upload_merges_what_is_new_and_leaves_a_much_larger_run_as_it_is() -> None:
    merged: list[list[int]] = []

    class Watched:
        merge = PLAN.merge

        def put_together(self, runs: Sequence[pa.Table]) -> pa.Table:
            merged.append([run.num_rows for run in runs])
            return PLAN.put_together(runs)

    panes = Panes(Watched())
    panes.append(0, partial(0, *((n, 1) for n in range(100))))
    panes.freeze()[0].compact()
    for n in range(5):
        panes.append(0, partial(0, (n, 1), (n + 1, 1)))
    (pane,) = panes.freeze()
    assert pane.compact().num_rows == 100 + 6 and merged == [[2] * 5]
    assert [run.num_rows for run in pane.held()[0]] == [6, 100]
    panes.append(0, partial(0, *((n, 1) for n in range(200, 248))))
    assert panes.freeze()[0].compact().num_rows == 148 and merged[1:] == [[6, 48, 100]], "54 rows are half of 100"
    assert sum(n for n, _ in results(panes.between(0, 10)).values()) == 100 + 10 + 48


@pytest.mark.parametrize(
    ("second", "rows", "why"),
    [
        (range(1000, 2000), 2000, "no key is in both runs"),
        (range(800, 1800), 2000, "a merge would leave 90 % of the rows"),
        (range(200, 1200), 1200, "a merge leaves 60 % of the rows"),
    ],
)
def test_runs_with_hardly_a_key_in_common_are_put_together_without_grouping(
    second: range, rows: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SMALL", 0)
    monkeypatch.setattr(plan, "_SAMPLE", np.uint64(2))
    runs = [partial(0, *((n, n) for n in keys)) for keys in (range(1000), second)]
    together = PLAN.put_together(runs)
    assert (together.num_rows, together.column(0).num_chunks) == (rows, 1), why
    assert results(PLAN.merge([together])) == results(PLAN.merge(runs))


def test_the_upload_writes_one_table_per_pane_with_a_row_per_key() -> None:
    panes = Panes(PLAN)
    for start in (10, 0):
        for n in range(11):
            panes.append(start, partial(start, (n % 2, n)))
    compact = [pane.compact() for pane in panes.freeze()]
    assert [table.column(WINDOW)[0].as_py() for table in compact] == [0, 10]
    assert [table.num_rows for table in compact] == [2, 2]
    assert Panes(PLAN).freeze() == []


def test_an_upload_puts_each_run_in_order_once() -> None:
    panes, asked = Panes(PLAN), []

    def order(run: pa.Table) -> pa.Table:
        asked.append(run.num_rows)
        return run.sort_by("k")

    panes.restore(0, partial(0, *((k, 1) for k in range(9, -1, -1))))
    assert panes.freeze()[0].compact(order).column("k").to_pylist() == list(range(10))
    panes.append(0, partial(0, (3, 1), (1, 1)))
    panes.freeze()  # its upload failed
    (second,) = panes.freeze()
    assert second.compact(order).column("k").to_pylist() == [1, 3, *range(10)]
    assert asked == [10, 2], "the first run was in order"


def test_restored_rows_are_not_put_together_with_the_first_runs() -> None:
    panes = Panes(PLAN)
    restored = partial(0, *((k, 1) for k in range(100)))
    panes.restore(0, restored)
    for n in range(FANOUT[0]):
        panes.append(0, partial(0, (n, 1)))
    (pane,) = panes.freeze()
    assert pane.runs[0] is restored and len(pane.runs) == 2
    assert results(panes.between(0, 10)) == {k: (2, 2) if k < FANOUT[0] else (1, 1) for k in range(100)}
