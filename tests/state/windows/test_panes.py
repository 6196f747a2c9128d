"""Columnar window state: what a snapshot refers to stays as it was (C3), and panes hold every row once."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.state.windows.aggregates import ROWS, WINDOW, AggregatePlan, count, total
from engine.state.windows.panes import FANOUT, Panes

SCHEMA = pa.schema([("k", pa.int64()), ("x", pa.int64())])
PLAN = AggregatePlan(["k"], {"n": count(), "sum": total("x")}, SCHEMA)


def partial(start: int, *rows: tuple[int, int]) -> pa.Table:
    return PLAN.partial(pa.RecordBatch.from_pylist([{"k": k, "x": x} for k, x in rows], schema=SCHEMA), start)


def results(table: pa.Table) -> dict[int, tuple[int, int]]:
    return {row["k"]: (row["n"], row["sum"]) for row in PLAN.finish(table).to_pylist()}


@given(st.lists(st.tuples(st.sampled_from([0, 10, 20]), st.integers(0, 3), st.integers(-9, 9)), max_size=400))
def test_a_pane_gives_every_row_exactly_once_however_many_levels_it_has(rows) -> None:
    panes = Panes(PLAN.merge)
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
    panes = Panes(PLAN.merge)
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
    panes = Panes(PLAN.merge)
    for n in range(1000):
        panes.append(0, partial(0, (n % 7, 1)))
    (pane,) = panes.freeze()
    assert len(pane.runs) < sum(FANOUT)


def test_what_an_upload_has_compacted_stands_for_its_runs_from_then_on() -> None:
    panes = Panes(PLAN.merge)
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
    panes, frozen, rows = Panes(PLAN.merge), [], 0
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
    panes = Panes(PLAN.merge)
    for start in (20, -10, 0, 10):
        panes.append(start, partial(start, (1, 1), (start, 5)))
    assert panes.starts() == [-10, 0, 10, 20] and panes.oldest == -10
    assert results(panes.between(0, 20)) == {1: (2, 2), 0: (1, 5), 10: (1, 5)}
    panes.append(10, partial(10, (10, 7)))  # a late row
    assert results(panes.between(0, 20)) == {1: (2, 2), 0: (1, 5), 10: (2, 12)}
    assert results(panes.between(10, 30)) == {1: (2, 2), 10: (2, 12), 20: (1, 5)}
    panes.drop(-10)
    assert panes.oldest == 0 and len(panes) == 3


def test_the_upload_writes_one_table_per_pane_with_a_row_per_key() -> None:
    panes = Panes(PLAN.merge)
    for start in (10, 0):
        for n in range(11):
            panes.append(start, partial(start, (n % 2, n)))
    compact = [pane.compact() for pane in panes.freeze()]
    assert [table.column(WINDOW)[0].as_py() for table in compact] == [0, 10]
    assert [table.num_rows for table in compact] == [2, 2]
    assert Panes(PLAN.merge).freeze() == []
