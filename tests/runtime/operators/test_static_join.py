"""Joins with a static table: against what SQL would give, in batches of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from engine.core.paths import JobPaths
from engine.runtime.operators.static_join import JoinIndex
from engine.runtime.static_table import StaticTable
from engine.runtime.written import Versions
from engine.store.directory import DirectoryStore

KEYS = st.one_of(st.none(), st.integers(0, 6))


@given(st.lists(KEYS, max_size=30), st.lists(KEYS, max_size=12))
def test_matches_are_those_of_a_nested_loop_in_the_order_of_the_batch(ours: list[Any], theirs: list[Any]) -> None:
    index = JoinIndex(pa.table({"key": pa.array(theirs, pa.int32())}), ["key"])
    left, right = index.matches([pa.array(ours, pa.int64())], len(ours))
    want = [(i, j) for i, a in enumerate(ours) for j, b in enumerate(theirs) if a is not None and a == b]
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == want


def test_keys_of_several_columns_all_have_to_be_equal() -> None:
    index = JoinIndex(pa.table({"a": ["x", "x", "y"], "b": [1, 2, 1]}), ["a", "b"])
    left, right = index.matches([pa.array(["x", "y", "y"]), pa.array([2, 1, 2])], 3)
    assert (left.tolist(), right.tolist()) == ([0, 1], [1, 2])


def test_only_versions_with_a_record_are_read(tmp_path: Path) -> None:
    store, paths = DirectoryStore(tmp_path), JobPaths("job")
    table = StaticTable(pa.schema([("key", pa.int64())]), 1000)
    versions = Versions(store, paths.static_tables("owners"))
    for version in (1, 2, 3):
        folder = f"{versions.base}/folder{version}"
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.table({"key": [version]}), tmp_path / folder / "part-0.parquet")
        if version < 3:
            assert versions.publish(version, folder)
    assert table.versions("owners", store, paths) == [1, 2]
    assert table.read("owners", 2, store, paths).to_pydict() == {"key": [2]}
