"""DataFrames as inputs: what slots read never changes, also if a JobMaster that was replaced writes once more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.connectors.dataframe import DataFrameSource, DataFrameTable
from engine.core.errors import StoreError
from engine.core.paths import JobPaths
from engine.protocol.epoch_records import Created
from engine.store.directory import DirectoryStore
from tests.fakes import FakeOffload, source_context

SCHEMA = pa.schema([("who", pa.string())])
PATHS = JobPaths("job")
SESSION: Any = SimpleNamespace(
    conf=SimpleNamespace(get=lambda name: "INT96", set=lambda name, value: None),
    sparkContext=SimpleNamespace(setJobDescription=lambda text: None),
)


def frame(who: str, meanwhile: Callable[[], None] = lambda: None) -> Any:
    """A DataFrame of one row. `meanwhile` happens while Spark writes it."""

    def parquet(uri: str) -> None:
        meanwhile()
        folder = Path(urlsplit(uri).path)
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"who": [who]}, schema=SCHEMA), folder / f"part-{who}.parquet")
        (folder / "_SUCCESS").touch()

    return lambda session: SimpleNamespace(write=SimpleNamespace(parquet=parquet))


def rows_of(source: DataFrameSource, store: DirectoryStore) -> list[str]:
    offload = FakeOffload()
    context = source_context(SCHEMA, offload=offload, store=store)
    discovery = source.discovery(context, [])
    offload.run()
    found: list[str] = []
    for split in discovery.poll():
        reader = source.reader(split, None, context)
        while not reader.finished:
            offload.run()
            batch = reader.poll(100)
            found += batch.column("who").to_pylist() if batch is not None else []
    return found


@pytest.mark.promise("D9")
def test_a_replaced_jobmaster_that_goes_on_writing_does_not_change_what_its_successor_s_slots_read(
    tmp_path: Path,
) -> None:
    store = DirectoryStore(tmp_path)
    seen: list[list[str]] = []

    def takeover() -> None:
        successor = DataFrameSource(frame("successor"))
        successor.prepare("src", SESSION, store, PATHS)
        seen.append(rows_of(successor, store))

    DataFrameSource(frame("zombie", takeover)).prepare("src", SESSION, store, PATHS)
    seen.append(rows_of(DataFrameSource(None), store))
    assert seen == [["successor"], ["successor"]]
    assert not [path for path in store.list("job") if "zombie" in path]


@pytest.mark.promise("D9")
def test_a_later_start_reads_what_the_first_one_wrote(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for who in ("first", "second"):
        DataFrameSource(frame(who)).prepare("src", SESSION, store, PATHS)
    assert rows_of(DataFrameSource(None), store) == ["first"]


def test_an_unknown_outcome_is_read_back(tmp_path: Path) -> None:
    class Forgetful(DirectoryStore):
        made = True

        def create(self, path: str, data: bytes) -> Created:
            if self.made:
                super().create(path, data)
            return Created.UNKNOWN

    store = Forgetful(tmp_path)
    DataFrameSource(frame("first")).prepare("src", SESSION, store, PATHS)
    assert rows_of(DataFrameSource(None), store) == ["first"]
    store.made = False
    with pytest.raises(StoreError, match="did not say whether"):
        DataFrameSource(frame("other")).prepare("other", SESSION, store, PATHS)


@pytest.mark.promise("D9")
def test_a_version_of_a_static_table_is_written_once_and_old_ones_go(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    table = DataFrameTable(SCHEMA, 1000, frame("first"))

    def rows(version: int) -> list[str]:
        return table.read("t", version, store, PATHS).column("who").to_pylist()

    def takeover() -> None:
        DataFrameTable(SCHEMA, 1000, frame("second")).refresh("t", SESSION, store, PATHS)

    table.prepare("t", SESSION, store, PATHS)
    DataFrameTable(SCHEMA, 1000, frame("zombie")).prepare("t", SESSION, store, PATHS)
    assert DataFrameTable(SCHEMA, 1000, frame("zombie", takeover)).refresh("t", SESSION, store, PATHS) == 2
    assert (rows(1), rows(2)) == (["first"], ["second"])
    for _ in range(DataFrameTable.KEPT + 1):
        table.refresh("t", SESSION, store, PATHS)
    assert table.versions("t", store, PATHS) == list(range(3, 9))
    assert not [path for path in store.list("job") if "second" in path]
