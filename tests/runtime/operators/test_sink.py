"""The sink operator: every row is in one committable, in barrier order, through aborts and failed writes."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.connectors.table import TableSink
from engine.core.errors import StoreError, UserFunctionError
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.core.sinks import Committer, Guarantee, Piece, Sink, SinkWriter, WriterContext
from engine.protocol.failures import Fault
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable
from engine.runtime.operators import sink as sink_module
from engine.runtime.operators.sink import SinkOperator
from engine.state.digests import digest
from tests.fakes import Collected, FakeClock, FakeOffload, MemoryStore, context

SCHEMA = pa.schema([("n", pa.int64()), ("_event_time", pa.int64())])


class ListSink(Sink):
    """Persists a piece by returning its rows. `failures`: so many writes fail first."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.persisted: list[list[int]] = []

    def writer(self, context: WriterContext) -> SinkWriter:
        self.schema = context.schema
        return _ListWriter(self)

    def committer(self, store: Store, paths: JobPaths) -> Committer:
        raise NotImplementedError


class _ListWriter(SinkWriter):
    def __init__(self, sink: ListSink) -> None:
        self._sink = sink

    def begin(self) -> None:
        self._rows: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.column("n").to_pylist()

    def pre_commit(self) -> Piece | None:
        return _ListPiece(self._sink, self._rows) if self._rows else None

    @property
    def buffered_bytes(self) -> int:
        return 8 * len(self._rows)


class _ListPiece(Piece):
    def __init__(self, sink: ListSink, rows: list[int]) -> None:
        self._sink = sink
        self._rows = rows
        self.size = 8 * len(rows)

    def persist(self) -> dict[str, Any]:
        if self._sink.failures:
            self._sink.failures -= 1
            raise StoreError("no space left")
        self._sink.persisted.append(self._rows)
        return {"rows": self._rows}


class Harness:
    def __init__(self, failures: int = 0) -> None:
        self.sink = ListSink(failures)
        self.offload = FakeOffload()
        self.clock = FakeClock()
        self.operator = SinkOperator(self.sink, SCHEMA)
        self.context = context("out", 1, 2, clock=self.clock, offload=self.offload, attempt=AttemptId(3, 4))
        self.operator.open(self.context, None)

    def write(self, *rows: int) -> None:
        batch = pa.record_batch({"n": pa.array(rows, pa.int64()), "_event_time": pa.array(rows, pa.int64())})
        self.operator.process(batch, Collected())

    def barrier(self, checkpoint: int) -> Any:
        """The synchronous part; returns the asynchronous one."""
        snapshot = self.operator.snapshot(checkpoint)
        assert snapshot.pre_commit is not None
        return snapshot.pre_commit


def rows_of(committables: Sequence[Committable]) -> list[list[int]]:
    return [c.payload["rows"] for c in committables]


@pytest.mark.promise("D11")
def test_a_barrier_turns_the_open_transaction_into_a_committable_with_its_birth_identity() -> None:
    sink = Harness()
    sink.write(1, 2)
    upload = sink.barrier(5)
    sink.write(3)
    (committable,) = upload()
    assert committable.identity == ("out", 1, AttemptId(3, 4), 5, 1)
    assert committable.payload == {"rows": [1, 2]}
    assert rows_of(sink.barrier(6)()) == [[1, 2], [3]]


def test_the_writer_does_not_see_the_hidden_column() -> None:
    assert Harness().sink.schema.names == ["n"]


@pytest.mark.promise("D11")
def test_what_an_aborted_checkpoint_pre_committed_is_carried_until_one_completes() -> None:
    sink = Harness()
    sink.write(1)
    first = sink.barrier(1)()
    sink.write(2)
    second = sink.barrier(2)()  # checkpoint 1 was aborted meanwhile: nobody called on_complete
    assert second[0] == first[0]
    assert rows_of(second) == [[1], [2]]
    sink.operator.on_complete(2)
    sink.write(3)
    assert rows_of(sink.barrier(3)()) == [[3]]


@pytest.mark.promise("D11")
def test_a_late_older_notice_of_completion_forgets_only_what_that_checkpoint_had() -> None:
    sink = Harness()
    for checkpoint in (1, 2):
        sink.write(checkpoint)
        sink.barrier(checkpoint)()
    sink.operator.on_complete(1)
    sink.operator.on_complete(1)
    assert rows_of(sink.barrier(3)()) == [[2]]


def test_a_failed_write_is_tried_again_with_the_next_checkpoint_and_order_is_kept() -> None:
    sink = Harness(failures=1)
    sink.write(1)
    failing = sink.barrier(1)
    with pytest.raises(StoreError):
        failing()
    sink.write(2)
    committables = sink.barrier(2)()
    assert rows_of(committables) == [[1], [2]]
    assert [c.checkpoint for c in committables] == [1, 2]
    assert sink.sink.persisted == [[1], [2]]


def test_a_checkpoint_without_rows_has_no_committable() -> None:
    assert Harness().barrier(1)() == []


@pytest.mark.promise("E1")
def test_a_full_transaction_is_written_ahead_and_belongs_to_the_next_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "ROLL_BYTES", 24)
    sink = Harness()
    sink.write(1, 2, 3)
    assert len(sink.offload.waiting) == 1
    sink.write(4)
    sink.offload.run()
    assert sink.sink.persisted == [[1, 2, 3]]
    committables = sink.barrier(1)()
    assert rows_of(committables) == [[1, 2, 3], [4]]
    assert {c.checkpoint for c in committables} == {1}
    assert [c.sequence for c in committables] == [1, 2]


@pytest.mark.promise("E1")
def test_a_sink_whose_writes_are_behind_takes_no_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "ROLL_BYTES", 24)
    sink = Harness(failures=1)
    sink.write(1, 2, 3)
    assert not sink.operator.blocked
    sink.write(4, 5, 6)
    assert sink.operator.blocked
    sink.offload.run()  # the first write fails, the second persists both
    assert not sink.operator.blocked
    assert rows_of(sink.barrier(1)()) == [[1, 2, 3], [4, 5, 6]]


def test_a_blocked_sink_whose_last_write_failed_tries_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocked, it takes no rows, so no further write ahead is started; without checkpoints no barrier comes either."""
    monkeypatch.setattr(sink_module, "ROLL_BYTES", 24)
    sink = Harness(failures=3)
    sink.write(1, 2, 3)
    sink.write(4, 5, 6)
    assert sink.operator.wakeup_ms is None, "writes are under way"
    sink.offload.run()
    for _ in range(3):
        assert sink.operator.blocked and sink.offload.waiting == [], "it waits"
    assert sink.operator.wakeup_ms == sink_module.RETRY_MS
    for _ in range(2):  # one more failure
        sink.clock.pass_ms(sink_module.RETRY_MS)
        assert sink.operator.blocked and sink.operator.blocked
        assert len(sink.offload.waiting) == 1 and sink.operator.wakeup_ms is None
        sink.offload.run()
    assert not sink.operator.blocked and sink.operator.wakeup_ms is None
    assert rows_of(sink.barrier(1)()) == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.promise("H1")
@pytest.mark.parametrize("together", [1, 3, 512])
def test_rows_and_digest_are_counted_whatever_the_batching(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    """Up to the barrier: the snapshot's ledger has all that was written before it."""
    one, other = Harness(), Harness()
    one.write(1, 2, 3, 4)
    one.barrier(1)
    monkeypatch.setattr(sink_module, "DIGEST_ROWS", together)
    for n in (4, 3, 2, 1):
        other.write(n)
    other.barrier(1)
    assert one.context.counters == other.context.counters
    assert one.context.counters["sink:out"] == 4
    assert one.context.counters["digest:out"] > 0


@pytest.mark.promise("D11")
@given(st.lists(st.sampled_from(["rows", "barrier", "upload", "complete", "fail"]), max_size=30))
def test_every_row_is_committed_exactly_once_and_in_order_whatever_fails(steps: list[str]) -> None:
    """Epochs publish what earlier epochs did not: as the JobMaster does, by birth identity."""
    sink = Harness()
    written = checkpoint = newest = 0
    uploads: list[tuple[int, Any]] = []
    published: list[Committable] = []
    for step in [*steps, "mend", "rows", "barrier", "upload"]:
        if step == "rows":
            sink.write(written)
            written += 1
        elif step == "barrier":
            checkpoint += 1
            uploads.append((checkpoint, sink.barrier(checkpoint)))
        elif step in ("fail", "mend"):
            sink.sink.failures = int(step == "fail")
        elif step == "complete":
            sink.operator.on_complete(newest)
        while step == "upload" and uploads:
            of, upload = uploads.pop(0)
            try:
                found = upload()
            except StoreError:
                continue  # declined, and aborted
            seen = {committable.identity for committable in published}
            published += [committable for committable in found if committable.identity not in seen]
            newest = of
    assert [n for rows in rows_of(published) for n in rows] == list(range(written))


class BrokenSink(ListSink):
    """Raises in one of its writer's methods."""

    def __init__(self, where: str, error: Exception) -> None:
        super().__init__()
        self.where, self.error = where, error

    def writer(self, context: WriterContext) -> SinkWriter:
        return _BrokenWriter(self)


class _BrokenWriter(_ListWriter):
    def __init__(self, sink: BrokenSink) -> None:
        super().__init__(sink)
        self._broken = sink

    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch)
        if self._broken.where == "write":
            raise self._broken.error

    def pre_commit(self) -> Piece | None:
        if self._broken.where == "pre_commit":
            raise self._broken.error
        return _BrokenPiece(self._broken)


class _BrokenPiece(Piece):
    size = 8

    def __init__(self, sink: BrokenSink) -> None:
        self._sink = sink

    def persist(self) -> dict[str, Any]:
        raise self._sink.error


@pytest.mark.promise("H8")
@pytest.mark.parametrize("where", ["write", "pre_commit", "persist"])
@pytest.mark.parametrize(("error", "fault"), [(ValueError("bad row"), Fault.JOB), (ConnectionError(), Fault.OUTSIDE)])
def test_an_author_s_sink_that_raises_is_named_and_is_the_job_s_fault_unless_its_target_is_away(
    where: str, error: Exception, fault: Fault
) -> None:
    operator = SinkOperator(BrokenSink(where, error), SCHEMA)
    operator.open(context(uid="out"), None)
    with pytest.raises(UserFunctionError, match=rf"operator 'out', subtask 0, {where}\(\)") as caught:
        operator.process(pa.record_batch([[1], [1]], schema=SCHEMA), Collected())
        snapshot = operator.snapshot(1)
        assert snapshot.pre_commit is not None
        snapshot.pre_commit()
    assert caught.value.fault is fault and caught.value.raised.line.rpartition(":")[0] == __file__


@pytest.mark.promise("H8")
def test_an_author_s_error_in_a_write_ahead_is_raised_at_once_though_a_blocked_sink_gets_no_barrier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink_module, "ROLL_BYTES", 4)
    offload = FakeOffload()
    operator = SinkOperator(BrokenSink("persist", ValueError("bad row")), SCHEMA)
    operator.open(context(uid="out", offload=offload), None)
    operator.process(pa.record_batch([[1], [1]], schema=SCHEMA), Collected())
    assert operator.blocked
    offload.run()
    with pytest.raises(UserFunctionError, match="bad row"):
        operator.blocked  # noqa: B018 (the subtask asks this before each step)
    assert not offload.waiting, "what always fails is not tried for ever"


NANOSECONDS = pa.timestamp("ns", "UTC")


@pytest.mark.parametrize(
    "times",
    [
        pa.array([1, -1_001, 1_700_000_000_123_456_789, None], NANOSECONDS),
        pa.array([[1, 2_500], None], pa.list_(NANOSECONDS)),
        pa.array([[1, 2_500], None], pa.list_(NANOSECONDS, 2)),
        pa.array([{"a": 2_500}, None], pa.struct([("a", NANOSECONDS)])),
        pa.array([[("x", 2_500)]], pa.map_(pa.string(), NANOSECONDS)),
        pa.array([[{"a": [2_500]}]], pa.list_(pa.struct([("a", pa.large_list(NANOSECONDS))]))),
        pa.array([1_001, 2_500], NANOSECONDS).dictionary_encode(),
    ],
    ids=lambda times: str(times.type),
)
def test_the_digest_of_nanoseconds_is_that_of_the_microseconds_which_a_table_stores(times: pa.Array) -> None:
    schema = pa.schema([("at", times.type), ("_event_time", pa.int64())])
    operator, counted = SinkOperator(TableSink("t"), schema), context("out", 0, 1)
    operator.open(counted, None)
    operator.process(pa.record_batch({"at": times, "_event_time": pa.array(range(len(times)))}), Collected())
    writer = TableSink("t").writer(
        WriterContext(0, counted.attempt, store := MemoryStore(), counted.paths, schema.remove(1), "1d")
    )
    writer.begin()
    writer.write(pa.record_batch({"at": times}))
    piece = writer.pre_commit()
    assert piece is not None
    stored = pq.read_table(pa.BufferReader(store.read(piece.persist()["path"]))).column("at").combine_chunks()
    operator.snapshot(1)
    assert counted.counters["digest:out"] == digest([stored])
