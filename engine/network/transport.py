"""`FlightTransport`: data channels between slots, one `DoExchange` stream for each.

Records travel one way, grants the other. A channel inside one slot uses the mailbox and no socket. A rollback cancels
streams and never shuts the server down, because that would hang while a stream is open.

Invariant: every stream names its attempt, and streams of an attempt that this slot has left are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import pyarrow as pa
from pyarrow import flight

from engine.core.ports import Frame
from engine.network.auth import RequireToken, call_options
from engine.network.places import address, location
from engine.network.wire import ChannelStream, descriptor, parse_descriptor, read_frame, write_frame
from engine.protocol.ids import AttemptId, ChannelId

OnFrame = Callable[[AttemptId, ChannelId, Frame], None]
OnGrant = Callable[[AttemptId, ChannelId, int], None]
OnBroken = Callable[[AttemptId, ChannelId, str], None]


class FlightTransport:
    """Connects one slot with the others. It listens at a host, or in a folder of sockets.

    The callbacks run in any thread, so they only fill the slot's mailbox.
    """

    def __init__(
        self, job: str, place: str, token: str, on_frame: OnFrame, on_grant: OnGrant, on_broken: OnBroken
    ) -> None:
        self._job = job
        self._token = token
        self._on_frame = on_frame
        self._on_grant = on_grant
        self._on_broken = on_broken
        self._left = AttemptId(0, 0)
        self._outgoing: dict[tuple[AttemptId, ChannelId], _Outgoing] = {}
        self._local: set[tuple[AttemptId, ChannelId]] = set()
        self._incoming: dict[tuple[AttemptId, ChannelId], SimpleQueue[int | None]] = {}
        self._clients: dict[str, flight.FlightClient] = {}
        self._lock = threading.Lock()
        listening = location(place)
        self._server = _ChannelServer(self, listening, token)
        self.address = address(listening, self._server)

    # --- the `Transport` port; called on the task thread ---

    def open(self, attempt: AttemptId, channel: ChannelId, address: str, schema: pa.Schema) -> None:
        if address == self.address:
            self._local.add((attempt, channel))
            return
        self._outgoing[attempt, channel] = _Outgoing(self, attempt, channel, self._client(address), schema)

    def send(self, attempt: AttemptId, channel: ChannelId, frame: Frame) -> None:
        if (attempt, channel) in self._local:
            self._on_frame(attempt, channel, frame)
        else:
            self._outgoing[attempt, channel].queue.put(frame)

    def grant(self, attempt: AttemptId, channel: ChannelId, granted_total: int) -> None:
        if (attempt, channel) in self._local:
            self._on_grant(attempt, channel, granted_total)
        else:
            self._grants(attempt, channel).put(granted_total)

    def close(self, attempt: AttemptId) -> None:
        with self._lock:
            self._left = max(self._left, attempt)
            gone = [key for key in self._incoming if key[0] <= attempt]
            queues = [self._incoming.pop(key) for key in gone]
        for queue in queues:
            queue.put(None)
        self._local = {key for key in self._local if key[0] > attempt}
        for key in [key for key in self._outgoing if key[0] <= attempt]:
            self._outgoing.pop(key).cancel()

    # --- streams ---

    def _client(self, address: str) -> flight.FlightClient:
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = flight.FlightClient(address)
        return client

    def _grants(self, attempt: AttemptId, channel: ChannelId) -> SimpleQueue[int | None]:
        """Returns the queue of grants of an incoming channel. The gate may grant before the sender connects."""
        with self._lock:
            return self._incoming.setdefault((attempt, channel), SimpleQueue())

    def accepts(self, stream: ChannelStream) -> bool:
        return stream.job == self._job and stream.attempt > self._left

    def serve(
        self, stream: ChannelStream, reader: flight.MetadataRecordBatchReader, writer: flight.MetadataRecordBatchWriter
    ) -> None:
        """Receives the frames of a channel until it is closed. Runs in a thread of the server."""
        attempt, channel = stream.attempt, stream.channel
        grants = self._grants(attempt, channel)
        out = threading.Thread(target=_write_grants, args=(grants, writer), name=f"grants {channel}", daemon=True)
        out.start()
        try:
            while True:
                frame = read_frame(reader.read_chunk())
                if attempt <= self._left:
                    return
                self._on_frame(attempt, channel, frame)
        except StopIteration:
            pass
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            if attempt > self._left:
                self._on_broken(attempt, channel, str(error).split("\n")[0])
        finally:
            grants.put(None)
            out.join()  # Arrow frees the writer when this method returns; a write under way would crash the process


def _write_grants(grants: SimpleQueue[int | None], writer: flight.MetadataRecordBatchWriter) -> None:
    try:
        while (granted := grants.get()) is not None:
            while not grants.empty():  # grants are running totals, so only the newest matters
                newer = grants.get()
                if newer is None:
                    return
                granted = newer
            writer.write_metadata(pa.py_buffer(granted.to_bytes(8, "little")))
    except (flight.FlightError, pa.ArrowException, OSError):
        pass  # the reading side reports the broken stream


class _ChannelServer(flight.FlightServerBase):
    def __init__(self, transport: FlightTransport, listening: str, token: str) -> None:
        self._transport = transport
        super().__init__(listening, middleware={"token": RequireToken(token)})

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        given: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        stream = parse_descriptor(given)
        if not isinstance(stream, ChannelStream) or not self._transport.accepts(stream):
            raise flight.FlightServerError(
                f"refused: {stream} belongs to another job, or to an attempt that this slot has left"
            )
        self._transport.serve(stream, reader, writer)


class _Outgoing:
    """The sender's end of a channel: one thread writes the frames that have credit, another reads grants."""

    def __init__(
        self,
        transport: FlightTransport,
        attempt: AttemptId,
        channel: ChannelId,
        client: flight.FlightClient,
        schema: pa.Schema,
    ) -> None:
        self.queue: SimpleQueue[Frame | None] = SimpleQueue()
        self._transport = transport
        self._attempt = attempt
        self._channel = channel
        self._cancelled = False
        stream = ChannelStream(transport._job, attempt, channel)
        self._writer, self._reader = client.do_exchange(descriptor(stream), call_options(transport._token))
        self._writer.begin(schema)
        threading.Thread(target=self._write, name=f"send {channel}", daemon=True).start()
        threading.Thread(target=self._read, name=f"credit {channel}", daemon=True).start()

    def _write(self) -> None:
        try:
            while (frame := self.queue.get()) is not None and not self._cancelled:
                write_frame(self._writer, frame)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            self._broken(error)

    def _read(self) -> None:
        try:
            while True:
                granted = int.from_bytes(self._reader.read_chunk().app_metadata.to_pybytes(), "little")
                self._transport._on_grant(self._attempt, self._channel, granted)
        except StopIteration:
            self._broken(ConnectionError("the receiver closed it"))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            self._broken(error)

    def _broken(self, error: BaseException) -> None:
        if not self._cancelled:
            self._transport._on_broken(self._attempt, self._channel, str(error).split("\n")[0])

    def cancel(self) -> None:
        self._cancelled = True
        self.queue.put(None)
        self._reader.cancel()
