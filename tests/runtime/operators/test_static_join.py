"""Joins with a static table: against what SQL would give, in batches of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.runtime.operators.base import RestoredState
from engine.runtime.operators.static_join import JoinIndex, StaticJoin
from engine.runtime.static_table import StaticTable
from engine.runtime.written import Versions
from engine.store.directory import DirectoryStore
from tests.fakes import Collected, FakeClock, FakeOffload, batch, context

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


@pytest.mark.parametrize("content", [b"", b'{"folder": "fol', b'{"folder": 7}', b"\xff"])
def test_a_damaged_record_of_a_version_is_named_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    """It was "Input data was truncated", and nobody knew of which file."""
    versions = Versions(DirectoryStore(tmp_path), "job/static/owners")
    (tmp_path / versions.base).mkdir(parents=True)
    (tmp_path / versions.base / "1.json").write_bytes(content)
    with pytest.raises(WeirError, match=r"job/static/owners/1\.json .*is not what was written.*from a backup"):
        versions.folder(1)


OWNERS = pa.schema([("key", pa.int64()), ("owner", pa.string())])
VIEWS = pa.schema([("n", pa.int64()), ("key", pa.int64())])


def publish(store: DirectoryStore, version: int, *owners: tuple[int, str]) -> None:
    versions = Versions(store, JobPaths("job").static_tables("op"))
    folder = f"{versions.base}/folder{version}"
    (store.root / folder).mkdir(parents=True)
    rows = [{"key": key, "owner": owner} for key, owner in owners]
    pq.write_table(pa.Table.from_pylist(rows, schema=OWNERS), store.root / folder / "part-0.parquet")
    assert versions.publish(version, folder)


def opened(
    store: DirectoryStore, outer: bool = False, restored: RestoredState | None = None, **ports: Any
) -> StaticJoin:
    join = StaticJoin(StaticTable(OWNERS, 1000), ["key"], outer, VIEWS.append(OWNERS.field("owner")))
    join.open(context(store=store, **ports), restored)
    return join


def joined(join: StaticJoin, *keys: int | None) -> list[tuple[int, str | None]]:
    out = Collected()
    join.process(batch([{"n": n, "key": key} for n, key in enumerate(keys)], VIEWS), out)
    return [(row["n"], row["owner"]) for row in out.rows]


def test_an_outer_join_keeps_the_records_without_a_match_in_their_place(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    publish(store, 1, (1, "ann"), (2, "bob"), (2, "cem"))
    assert joined(opened(store), 2, 7, None, 1) == [(0, "bob"), (0, "cem"), (3, "ann")]
    assert joined(opened(store, outer=True), 2, 7, None, 1) == [
        (0, "bob"),
        (0, "cem"),
        (1, None),
        (2, None),
        (3, "ann"),
    ]


def test_a_table_that_nobody_has_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(WeirError, match="the static table of 'op' was not written"):
        opened(DirectoryStore(tmp_path))


def test_a_join_takes_a_newer_version_when_it_is_time_and_a_restored_one_begins_with_its_own(tmp_path: Path) -> None:
    store, clock, offload = DirectoryStore(tmp_path), FakeClock(), FakeOffload()
    publish(store, 1, (1, "ann"))
    join = opened(store, clock=clock, offload=offload)
    publish(store, 2, (1, "bob"))
    clock.pass_ms(999)
    assert joined(join, 1) == [(0, "ann")] and not offload.waiting
    inline = join.snapshot(1).inline
    clock.pass_ms(1)
    assert joined(join, 1) == [(0, "ann")]
    offload.run()
    assert joined(join, 1) == [(0, "bob")]
    assert joined(opened(store, restored=RestoredState([inline], [])), 1) == [(0, "ann")]
