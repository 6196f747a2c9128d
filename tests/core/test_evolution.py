"""Which changes of a type saved values survive, and what becomes of them (D8)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.evolution import Unfit, adaptations, adapted

PERSON = pa.struct([("name", pa.string()), ("age", pa.int32())])


def values(given: list[Any], was: pa.DataType, now: pa.DataType, **defaults: Any) -> list[Any]:
    made = adapted(pa.chunked_array([pa.array(given, was)]), now, defaults)
    made.validate(full=True)
    assert made.type == now
    result: list[Any] = made.to_pylist()
    return result


@pytest.mark.promise("D8")
def test_fields_are_added_dropped_and_widened_by_name() -> None:
    now = pa.struct([("country", pa.string()), ("age", pa.int64())])
    assert adaptations(PERSON, now) == [
        "country string is new, and null where it is missing",
        "age is widened from int32 to int64",
        "name string is dropped",
    ]
    people = [{"name": "Ada", "age": 36}, None, {"name": None, "age": None}]
    assert values(people, PERSON, now) == [{"country": None, "age": 36}, None, {"country": None, "age": None}]


@pytest.mark.promise("D8")
def test_a_field_that_is_missing_gets_its_declared_default() -> None:
    now = pa.struct([*PERSON, pa.field("country", pa.string(), nullable=False)])
    with pytest.raises(Unfit, match="country string is new and NOT NULL, and there is no default for it"):
        adaptations(PERSON, now)
    assert values([{"name": "Ada", "age": 36}], PERSON, now, country="UK") == [
        {"name": "Ada", "age": 36, "country": "UK"}
    ]


@pytest.mark.promise("D8")
@pytest.mark.parametrize(
    ("was", "now"),
    [
        (pa.int64(), pa.int32()),
        (pa.float64(), pa.float32()),
        (pa.int64(), pa.float64()),
        (pa.string(), pa.int64()),
        (pa.map_(pa.int32(), pa.string()), pa.map_(pa.int64(), pa.string())),
        (PERSON, pa.string()),
        (pa.struct([("n", pa.int64())]), pa.struct([("n", pa.string())])),
    ],
)
def test_what_would_change_the_meaning_of_a_value_is_refused(was: pa.DataType, now: pa.DataType) -> None:
    with pytest.raises(Unfit):
        adaptations(was, now)


@pytest.mark.promise("D8")
def test_another_order_of_fields_is_no_change() -> None:
    now = pa.struct([("age", pa.int32()), ("name", pa.string())])
    assert adaptations(PERSON, now) == []
    assert values([{"name": "Ada", "age": 36}], PERSON, now) == [{"age": 36, "name": "Ada"}]


@pytest.mark.promise("D8")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.none()
        | st.fixed_dictionaries(
            {
                "n": st.none() | st.integers(-(2**31), 2**31 - 1),
                "tags": st.none() | st.lists(st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(0, 9)})),
                "by": st.none() | st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2),
            }
        ),
        max_size=6,
    ),
    st.integers(0, 3),
)
def test_nested_values_are_adapted_as_one_by_one_in_python(rows: list[Any], begin: int) -> None:
    was = pa.struct(
        [
            ("n", pa.int32()),
            ("tags", pa.list_(pa.struct([("x", pa.int32())]))),
            ("by", pa.map_(pa.string(), pa.int32())),
        ]
    )
    now = pa.struct(
        [
            ("by", pa.map_(pa.string(), pa.int64())),
            ("tags", pa.list_(pa.struct([("y", pa.string()), ("x", pa.int64())]))),
            ("n", pa.int64()),
        ]
    )

    def expected(row: Any) -> Any:
        if row is None:
            return None
        tags = None if row["tags"] is None else [t if t is None else {"y": None, "x": t["x"]} for t in row["tags"]]
        return {"by": None if row["by"] is None else list(row["by"].items()), "tags": tags, "n": row["n"]}

    saved = pa.chunked_array([pa.array(rows, was), pa.array(rows, was)]).slice(begin)
    made = adapted(saved, now)
    made.validate(full=True)
    assert made.to_pylist() == [expected(row) for row in (rows + rows)[begin:]]


@pytest.mark.promise("D8")
@pytest.mark.parametrize("begin", [0, 1])
def test_what_lies_behind_a_null_list_or_map_does_not_become_part_of_its_neighbour(begin: int) -> None:
    """Arrow allows a null item to have values behind it, as kernels that only change the validity leave them."""
    offsets, nulls = pa.array([0, 1, 2, 4, 5], pa.int32()), pa.array([False, False, True, False])
    numbers, texts = pa.array([0, 1, 2, 3, 4], pa.int32()), pa.array(list("abcde"))
    lists = pa.ListArray.from_arrays(offsets, numbers, mask=nulls)
    maps = pa.MapArray.from_arrays(offsets, texts, numbers, mask=nulls)
    for saved, now in ((lists, pa.list_(pa.int64())), (maps, pa.map_(pa.string(), pa.int64()))):
        made = adapted(pa.chunked_array([saved.slice(begin)]), now)
        made.validate(full=True)
        assert made.to_pylist() == saved.slice(begin).to_pylist()


@pytest.mark.promise("D8")
def test_a_default_is_that_of_a_field_of_the_state_and_not_of_a_field_inside_of_it() -> None:
    was = pa.struct([("inner", pa.struct([("a", pa.int64())]))])
    now = pa.struct([("inner", pa.struct([("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)]))])
    with pytest.raises(Unfit, match=r"inner\.b int64 is new and NOT NULL, and there is no default for it"):
        adaptations(was, now, {"b": 1})
