"""The two ends of a channel, and the output gate that distributes batches over the channels of one edge.

Invariants: a sender without credit sends no rows. Frames arrive in sequence, each once. A signal never overtakes data
that was emitted before it.
"""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from engine.core.errors import ChannelError, RecordTooLarge
from engine.core.ports import Element, Frame, Transport
from engine.protocol.credits import MAX_FRAME_BYTES, SenderCredit
from engine.protocol.ids import AttemptId, ChannelId
from engine.protocol.signals import Signal
from engine.runtime.exchange.partitioners import Partitioner


class OutputChannel:
    """The sending end. Elements without credit wait in `_waiting`; meanwhile the subtask takes no new input."""

    def __init__(
        self, attempt: AttemptId, channel: ChannelId, transport: Transport, frame_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        self.id = channel
        self.rows_sent = 0
        self._frame_bytes = frame_bytes
        self._attempt = attempt
        self._transport = transport
        self._credit = SenderCredit()
        self._waiting: deque[tuple[Element, int]] = deque()
        self._backlog = 0
        self._sequence = 0

    def emit(self, element: Element) -> None:
        if isinstance(element, pa.RecordBatch):
            self.rows_sent += element.num_rows
            for piece in sliced(element, self._frame_bytes):
                size = piece.nbytes
                self._waiting.append((piece, size))
                self._backlog += size
        else:
            self._waiting.append((element, 0))
        self.flush()

    def on_grant(self, granted_total: int) -> None:
        self._credit.grant(granted_total)

    def flush(self) -> None:
        waiting = self._waiting
        while waiting and self._credit.allows(waiting[0][1]):
            element, size = waiting.popleft()
            self._credit.use(size)
            self._backlog -= size
            self._sequence += 1
            self._transport.send(self._attempt, self.id, Frame(self._sequence, element, size, self._backlog))

    @property
    def blocked(self) -> bool:
        return bool(self._waiting)


def sliced(batch: pa.RecordBatch, frame_bytes: int = MAX_FRAME_BYTES) -> list[pa.RecordBatch]:
    """Cuts a batch into pieces that each fit into a frame."""
    size = batch.nbytes
    if size <= frame_bytes:
        return [batch]
    if any(pa.types.is_dictionary(field.type) for field in batch.schema):
        batch = _with_own_dictionaries(batch)  # a slice carries its whole dictionary
        if batch.nbytes <= frame_bytes:
            return [batch]
    if batch.num_rows == 1:
        raise RecordTooLarge(f"one record has {size} bytes; a channel takes records up to {frame_bytes} bytes")
    half = batch.num_rows // 2
    return sliced(batch.slice(0, half), frame_bytes) + sliced(batch.slice(half), frame_bytes)


def _with_own_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the same rows and types with dictionaries that hold only the values of these rows."""
    columns = []
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            of, used = column.type, column.dictionary_decode().dictionary_encode()
            column = pa.DictionaryArray.from_arrays(
                used.indices.cast(of.index_type), used.dictionary, ordered=of.ordered
            )
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


class OutputGate:
    """The sending side of one edge in one subtask: its channels and their partitioner."""

    def __init__(
        self,
        edge: str,
        channels: list[OutputChannel],
        partitioner: Partitioner,
        side: tuple[str, str] | None = None,
    ) -> None:
        self.edge = edge
        self.side = side
        self.channels = channels
        self._partitioner = partitioner

    def emit(self, batch: pa.RecordBatch) -> None:
        for target, part in self._partitioner.split(batch):
            self.channels[target].emit(part)

    def broadcast(self, signal: Signal) -> None:
        for channel in self.channels:
            channel.emit(signal)

    def flush(self) -> None:
        for channel in self.channels:
            channel.flush()

    @property
    def blocked(self) -> bool:
        return any(channel.blocked for channel in self.channels)

    @property
    def rows_sent(self) -> int:
        return sum(channel.rows_sent for channel in self.channels)


class InputChannel:
    """The receiving end: a queue that the input gate polls."""

    def __init__(self, channel: ChannelId) -> None:
        self.id = channel
        self._queue: deque[tuple[Element, int]] = deque()
        self._sequence = 0

    def receive(self, frame: Frame) -> None:
        self._sequence += 1
        if frame.sequence != self._sequence:
            raise ChannelError(f"channel {self.id}: frame {frame.sequence} arrived where {self._sequence} was due")
        self._queue.append((frame.element, frame.size))

    def __len__(self) -> int:
        return len(self._queue)

    def take(self, max_rows: int) -> tuple[Element, int]:
        """Returns the next element and the bytes that it frees. Cuts a batch at `max_rows`; the rest stays first."""
        element, size = self._queue.popleft()
        if isinstance(element, pa.RecordBatch) and element.num_rows > max_rows:
            part = size * max_rows // element.num_rows
            self._queue.appendleft((element.slice(max_rows), size - part))
            return element.slice(0, max_rows), part
        return element, size
