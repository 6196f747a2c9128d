"""Control streams carry messages between the JobMaster and its slots; each slot opens one.

Invariant: sending a message never blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import pyarrow as pa
from pyarrow import flight

from engine.network.auth import RequireToken, call_options
from engine.network.places import address, location
from engine.network.wire import ControlStream, descriptor, parse_descriptor
from engine.protocol.messages import (
    MasterMessage,
    SlotMessage,
    decode_master_message,
    decode_slot_message,
    encode,
)

_BROKEN = (flight.FlightError, pa.ArrowException, OSError)


class ControlClient:
    """The slot's end of a control stream. The callbacks run in its threads."""

    def __init__(
        self,
        job: str,
        session: str,
        address: str,
        token: str,
        on_message: Callable[[MasterMessage], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._queue: SimpleQueue[SlotMessage | None] = SimpleQueue()
        self._client = flight.FlightClient(address)
        self._writer, self._reader = self._client.do_exchange(
            descriptor(ControlStream(job, session)), call_options(token)
        )
        threading.Thread(target=self._write, name="control out", daemon=True).start()
        threading.Thread(target=self._read, name="control in", daemon=True).start()

    def send(self, message: SlotMessage) -> None:
        self._queue.put(message)

    def close(self) -> None:
        """Closes the stream. The process may go on after its slot has ended."""
        self._queue.put(None)

    def _write(self) -> None:
        try:
            while (message := self._queue.get()) is not None:
                self._writer.write_metadata(pa.py_buffer(encode(message)))
            self._writer.done_writing()
        except _BROKEN as error:
            self._on_lost(str(error).split("\n")[0])

    def _read(self) -> None:
        try:
            while True:
                self._on_message(decode_master_message(self._reader.read_chunk().app_metadata.to_pybytes()))
        except StopIteration:
            self._on_lost("the JobMaster closed the control stream")
        except _BROKEN as error:
            self._on_lost(str(error).split("\n")[0])


class ControlServer(flight.FlightServerBase):
    """The JobMaster's end of all control streams, at a host or in a folder of sockets.

    The callbacks run in any thread, so they only fill its mailbox.
    """

    def __init__(
        self,
        job: str,
        place: str,
        token: str,
        on_message: Callable[[str, SlotMessage], None],
        on_gone: Callable[[str, str], None],
    ) -> None:
        self._job = job
        self._on_message = on_message
        self._on_gone = on_gone
        self._queues: dict[str, SimpleQueue[MasterMessage | None]] = {}
        listening = location(place)
        super().__init__(listening, middleware={"token": RequireToken(token)})
        self.address = address(listening, self)

    def send(self, session: str, message: MasterMessage) -> None:
        queue = self._queues.get(session)
        if queue is not None:
            queue.put(message)

    def close(self, patience_s: float) -> None:
        """Shuts the server down, for at most `patience_s`. With open streams that hangs until the process ends."""
        ending = threading.Thread(target=self.shutdown, name="control end", daemon=True)
        ending.start()
        ending.join(patience_s)

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        given: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        stream = parse_descriptor(given)
        if not isinstance(stream, ControlStream) or stream.job != self._job:
            raise flight.FlightServerError(f"refused: this is the JobMaster of job {self._job!r}, not of {stream}")
        queue: SimpleQueue[MasterMessage | None] = SimpleQueue()
        if self._queues.setdefault(stream.session, queue) is not queue:
            raise flight.FlightServerError(f"refused: session {stream.session} has a control stream already")
        out = threading.Thread(target=_write, args=(queue, writer), name=f"to {stream.session}", daemon=True)
        out.start()
        why = "its process ended (killed, or crashed)"
        try:
            while True:
                self._on_message(stream.session, decode_slot_message(reader.read_chunk().app_metadata.to_pybytes()))
        except StopIteration:
            pass
        except _BROKEN as error:
            why = str(error).split("\n")[0]
        finally:
            del self._queues[stream.session]
            queue.put(None)
            self._on_gone(stream.session, why)
            out.join()  # Arrow frees the writer when this method returns; a write under way would crash the process


def _write(queue: SimpleQueue[MasterMessage | None], writer: flight.MetadataRecordBatchWriter) -> None:
    try:
        while (message := queue.get()) is not None:
            writer.write_metadata(pa.py_buffer(encode(message)))
    except _BROKEN:
        pass  # the reading side reports it
