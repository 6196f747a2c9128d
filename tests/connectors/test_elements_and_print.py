"""`from_elements` and `print`: the smallest source and the smallest sink."""

import pyarrow as pa
import pytest

from engine.connectors.elements import ElementsSource
from engine.connectors.printing import PrintSink
from engine.core.paths import JobPaths
from engine.core.sinks import Guarantee, WriterContext
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.manifest import ManifestRef
from tests.fakes import ATTEMPT, JOB_ID, MemoryStore, source_context

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
ROWS = [{"a": n, "b": f"r{n}"} for n in range(10)]


@pytest.mark.promise("A1")
def test_elements_are_one_split_that_ends() -> None:
    source = ElementsSource(ROWS, SCHEMA)
    (split,) = source.splits()
    reader = source.reader(split, None, source_context(SCHEMA))
    found = []
    while not reader.finished:
        batch = reader.poll(3)
        assert batch is not None and batch.schema == SCHEMA
        found += batch.to_pylist()
    assert found == ROWS
    assert reader.poll(3) is None


@pytest.mark.parametrize("position", range(11))
def test_elements_go_on_from_any_position(position: int) -> None:
    reader = ElementsSource(ROWS, SCHEMA).reader("0", position, source_context(SCHEMA))
    batch = reader.poll(100)
    assert (batch.to_pylist() if batch is not None else []) == ROWS[position:]
    assert reader.position == 10


def test_no_elements_end_at_once() -> None:
    reader = ElementsSource([], SCHEMA).reader("0", None, source_context(SCHEMA))
    assert reader.finished
    assert reader.poll(5) is None


def test_the_order_of_an_element_s_fields_does_not_matter_and_nulls_are_values() -> None:
    source = ElementsSource([{"b": None, "a": 1}], SCHEMA)
    batch = source.reader("0", None, source_context(SCHEMA)).poll(5)
    assert batch is not None and batch.to_pylist() == [{"a": 1, "b": None}]


@pytest.mark.promise("A1")
def test_print_shows_each_record_at_once_with_its_subtask(capsys: pytest.CaptureFixture[str]) -> None:
    sink = PrintSink()
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE
    store = MemoryStore()
    writer = sink.writer(WriterContext(3, ATTEMPT, store, JobPaths("job"), SCHEMA, JOB_ID))
    writer.begin()
    writer.write(pa.RecordBatch.from_pylist(ROWS[:2], schema=SCHEMA))
    assert capsys.readouterr().out == "3> {'a': 0, 'b': 'r0'}\n3> {'a': 1, 'b': 'r1'}\n"
    assert writer.pre_commit() is None
    assert writer.buffered_bytes == 0
    committer = sink.committer(store, JobPaths("job"))
    committer.commit(CommitPermit.issue(ManifestRef("m", "00", 1, 1)), [])
    committer.abort_unknown(None, ATTEMPT)
    assert store.files == {}
