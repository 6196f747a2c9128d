"""The format of Flight streams: descriptors that say what a stream carries, and metadata that goes with batches."""

from __future__ import annotations

import msgspec
import pyarrow as pa
from pyarrow import flight

from engine.core.ports import Frame
from engine.protocol.ids import AttemptId, ChannelId
from engine.protocol.signals import Signal, StreamStatus
from engine.store.failpoints import Point, failpoint


class ChannelStream(msgspec.Struct, frozen=True, tag="channel"):
    """Carries records and signals of one channel of one attempt, and grants in the other direction."""

    job: str
    attempt: AttemptId
    channel: ChannelId


class ControlStream(msgspec.Struct, frozen=True, tag="control"):
    """Carries a slot's messages to the JobMaster, and the JobMaster's messages in the other direction."""

    job: str
    session: str


Stream = ChannelStream | ControlStream
_streams = msgspec.json.Decoder(Stream)


class _Header(msgspec.Struct, frozen=True, array_like=True):
    sequence: int
    size: int
    backlog: int
    signal: Signal | None


_headers = msgspec.msgpack.Decoder(_Header)
_encoder = msgspec.msgpack.Encoder()


SIGN_OF_LIFE = Frame(0, StreamStatus(idle=False), 0, 0)
"""A frame that carries nothing: its sender is there. The frames of a channel are numbered from 1."""


def descriptor(stream: Stream) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(msgspec.json.encode(stream))


def parse_descriptor(given: flight.FlightDescriptor) -> Stream:
    try:
        stream: Stream = _streams.decode(given.command)
    except msgspec.DecodeError as error:
        raise flight.FlightServerError(f"this is not a Weir stream: {error}") from error
    return stream


@failpoint(before=Point.CHANNEL)
def write_frame(writer: flight.FlightStreamWriter, frame: Frame) -> None:
    """Writes a frame. It blocks while the peer takes nothing, so only sender threads may call it."""
    if isinstance(frame.element, pa.RecordBatch):
        header = _encoder.encode(_Header(frame.sequence, frame.size, frame.backlog, None))
        writer.write_with_metadata(frame.element, pa.py_buffer(header))
    else:
        header = _encoder.encode(_Header(frame.sequence, frame.size, frame.backlog, frame.element))
        writer.write_metadata(pa.py_buffer(header))


@failpoint(before=Point.CHANNEL)
def write_grant(writer: flight.MetadataRecordBatchWriter, granted_total: int) -> None:
    """Writes a grant. It blocks as `write_frame` does."""
    writer.write_metadata(pa.py_buffer(granted_total.to_bytes(8, "little")))


def read_frame(chunk: flight.FlightStreamChunk) -> Frame:
    header = _headers.decode(chunk.app_metadata.to_pybytes())
    element = chunk.data if header.signal is None else header.signal
    return Frame(header.sequence, element, header.size, header.backlog)
