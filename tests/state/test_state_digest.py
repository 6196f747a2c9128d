"""The digest of state is a function of its rows alone, and covers values of every type that state can have."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.state.state_digest import table_digest

NESTED = pa.schema(
    [
        ("key", pa.string()),
        ("list", pa.list_(pa.int64())),
        ("map", pa.map_(pa.string(), pa.float64())),
        ("struct", pa.struct([("a", pa.list_(pa.string())), ("b", pa.int32())])),
        ("fixed", pa.list_(pa.int8(), 2)),
        ("deep", pa.list_(pa.list_(pa.int64()))),
    ]
)

small = st.integers(-3, 3)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["a", "b", "c"]),
            "list": st.none() | st.lists(st.none() | small, max_size=3),
            "map": st.none() | st.lists(st.tuples(st.sampled_from("xy"), st.floats(0, 1)), max_size=2),
            "struct": st.none()
            | st.fixed_dictionaries({"a": st.none() | st.lists(st.sampled_from(["", "p"]), max_size=2), "b": small}),
            "fixed": st.none() | st.tuples(small, small),
            "deep": st.none() | st.lists(st.none() | st.lists(small, max_size=2), max_size=2),
        }
    ),
    max_size=8,
)


def table(of: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(of, schema=NESTED)


@pytest.mark.promise("H6")
@given(rows, st.randoms(use_true_random=False), st.integers(0, 8))
def test_neither_order_nor_chunks_nor_slices_change_it(of: list[dict[str, Any]], random: Any, cut: int) -> None:
    whole = table(of)
    shuffled = list(of)
    random.shuffle(shuffled)
    assert table_digest(table(shuffled)) == table_digest(whole)
    first, second = whole.slice(0, cut), whole.slice(min(cut, len(of)))
    assert (table_digest(first) + table_digest(second)) % 2**64 == table_digest(whole)
    assert table_digest(pa.concat_tables([second, first])) == table_digest(whole)


@given(rows, rows)
def test_other_rows_give_another_digest(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    if sorted(map(str, table(one).to_pylist())) != sorted(map(str, table(other).to_pylist())):
        assert table_digest(table(one)) != table_digest(table(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([[1, 2]], [[2, 1]]),
        ([[1], [2]], [[1, 2], []]),
        ([None], [[]]),
        ([[None]], [[]]),
        ([[1, 1]], [[1]]),
    ],
    ids=["order in a list", "borders of lists", "null and empty", "a null element", "a repeated element"],
)
def test_lists_that_look_alike_differ(one: Any, other: Any) -> None:
    schema = pa.list_(pa.int64())
    digests = [table_digest(pa.table({"v": pa.array(of, schema)})) for of in (one, other)]
    assert digests[0] != digests[1]


def test_the_order_of_columns_plays_no_part_but_their_names_do() -> None:
    one = pa.table({"a": [1, 2], "b": [3, 4]})
    assert table_digest(one.select(["b", "a"])) == table_digest(one)
    assert table_digest(pa.table({"a": [3, 4], "b": [1, 2]})) != table_digest(one)


def test_an_empty_state_has_no_digest() -> None:
    assert table_digest(table([])) == 0
