"""Both ends of a channel: order, credit, frames of bounded size, and what a receiver gives back."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import ChannelError, RecordTooLarge
from engine.core.ports import Frame
from engine.protocol.credits import MAX_FRAME_BYTES
from engine.protocol.ids import ChannelId
from engine.protocol.signals import Barrier, EndOfData, Watermark
from engine.runtime.exchange.channels import InputChannel, OutputChannel, OutputGate, sliced
from engine.runtime.exchange.partitioners import HashPartitioner
from tests.fakes import ATTEMPT, FakeTransport

CHANNEL = ChannelId("a->b", 0, 0)


def rows(count: int, start: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(start, start + count), pa.int64())})


@pytest.mark.promise("E1")
def test_without_credit_data_waits_and_signals_wait_behind_it() -> None:
    transport = FakeTransport()
    channel = OutputChannel(ATTEMPT, CHANNEL, transport)
    channel.emit(Watermark(1))  # needs no credit: nothing waits before it
    channel.emit(rows(10))
    channel.emit(Barrier(1, 0))
    assert [frame.element for _, frame in transport.sent] == [Watermark(1)]
    assert channel.blocked
    channel.on_grant(1)  # any credit lets a frame through: a gate that is slow grants less than one
    channel.flush()
    assert [type(frame.element) for _, frame in transport.sent] == [Watermark, pa.RecordBatch, Barrier]
    assert not channel.blocked
    assert channel.rows_sent == 10
    channel.on_grant(80)
    channel.emit(rows(1))
    assert channel.blocked, "it owes what it sent beyond its credit"


def test_frames_are_numbered_and_tell_the_backlog_behind_them() -> None:
    transport = FakeTransport()
    channel = OutputChannel(ATTEMPT, CHANNEL, transport)
    for n in range(3):
        channel.emit(rows(10, n))
    channel.on_grant(1000)
    channel.flush()
    assert [(f.sequence, f.size, f.backlog) for _, f in transport.sent] == [(1, 80, 160), (2, 80, 80), (3, 80, 0)]


@given(st.integers(1, 5000), st.integers(8, 400))
def test_a_large_batch_is_sent_in_pieces_that_each_fit_a_frame(count: int, frame_bytes: int) -> None:
    pieces = sliced(rows(count), frame_bytes)
    assert all(piece.nbytes <= frame_bytes for piece in pieces)
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([rows(count)]))


def test_slices_of_string_columns_count_their_own_bytes_only() -> None:
    batch = pa.record_batch({"s": ["x" * 1000] * 10_000})
    assert batch.nbytes > 4 * MAX_FRAME_BYTES
    pieces = sliced(batch)
    assert 5 <= len(pieces) <= 16
    assert all(piece.nbytes <= MAX_FRAME_BYTES for piece in pieces)


def test_a_record_too_large_for_a_frame_is_told_with_its_size() -> None:
    batch = pa.record_batch({"s": ["x" * (MAX_FRAME_BYTES + 1)]})
    with pytest.raises(
        RecordTooLarge, match=r"one record has 20971.. bytes; a channel takes records up to 2097152 bytes"
    ):
        sliced(batch)


def test_small_records_over_a_large_dictionary_still_get_through() -> None:
    """The dictionary travels with every slice, so slicing never makes the batch smaller than it."""
    words = pa.array([f"{n:0100d}" for n in range(40_000)])
    batch = pa.record_batch({"s": words.dictionary_encode()})
    assert batch.slice(0, 1).nbytes > MAX_FRAME_BYTES
    pieces = sliced(batch)
    assert sum(piece.num_rows for piece in pieces) == 40_000


def test_a_lost_repeated_or_reordered_frame_is_noticed() -> None:
    for sequences in ([2], [1, 1], [1, 3]):
        channel = InputChannel(CHANNEL)
        with pytest.raises(ChannelError, match=r"channel a->b:0->0: frame . arrived where . was due"):
            for sequence in sequences:
                channel.receive(Frame(sequence, Watermark(0), 0, 0))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(1, 20))
def test_a_batch_may_be_taken_in_parts_and_gives_its_bytes_back_once(sizes: list[int], max_rows: int) -> None:
    channel = InputChannel(CHANNEL)
    start = 0
    for sequence, size in enumerate(sizes):
        channel.receive(Frame(sequence + 1, rows(size, start), 8 * size, 0))
        start += size
    channel.receive(Frame(len(sizes) + 1, EndOfData(), 0, 0))
    found, freed = [], 0
    while len(channel) > 1:
        element, given_back = channel.take(max_rows)
        assert element.num_rows <= max_rows
        found += element.column("n").to_pylist()
        freed += given_back
    assert found == list(range(start))
    assert freed == 8 * start
    assert channel.take(max_rows) == (EndOfData(), 0)


def test_a_port_spreads_rows_and_broadcasts_signals() -> None:
    transport = FakeTransport()
    channels = [OutputChannel(ATTEMPT, ChannelId("a->b", 0, target), transport) for target in range(3)]
    gate = OutputGate("a->b", channels, HashPartitioner(["n"], 3, 128))
    gate.emit(rows(100))
    gate.broadcast(Barrier(7, 0))
    assert gate.blocked
    assert gate.rows_sent == 100
    for channel in channels:
        channel.on_grant(10_000)
    gate.flush()
    assert not gate.blocked
    for target in range(3):
        of_target = [frame.element for channel, frame in transport.sent if channel.receiver == target]
        assert of_target[-1] == Barrier(7, 0)
        assert len(of_target) == 2


def test_a_batch_that_is_large_with_its_own_dictionaries_too_is_cut() -> None:
    names = pa.array(["a", "b"] * 4_000).dictionary_encode()
    batch = pa.record_batch({"name": names, "n": pa.array(range(8_000), pa.int64())})
    pieces = sliced(batch, 16_000)
    assert max(piece.nbytes for piece in pieces) <= 16_000
    assert pa.Table.from_batches(pieces).to_pylist() == batch.to_pylist()
