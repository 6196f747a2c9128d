"""`FlightTransport`: data channels between slots, one `DoExchange` stream for each.

Records travel one way, grants the other. A channel inside one slot uses the mailbox and no socket. A rollback cancels
streams and never shuts the server down, because that would hang while a stream is open. A link that carries nothing any
more may stay open for a quarter of an hour, so both ends of a channel show life once a second, and notice silence.

Invariants: every stream names its attempt, and streams of an attempt that this slot has left are refused. Attempts
share no connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa
from pyarrow import flight

from engine.core.ports import Frame
from engine.network.auth import RequireToken, call_options
from engine.network.incoming import Incoming
from engine.network.outgoing import Outgoing, Streams
from engine.network.places import address, location
from engine.network.wire import ChannelStream, descriptor, parse_descriptor
from engine.protocol.channel_watch import look_period_ms, sign_period_ms
from engine.protocol.ids import AttemptId, ChannelId

OnFrame = Callable[[AttemptId, ChannelId, Frame], None]
OnGrant = Callable[[AttemptId, ChannelId, int], None]
OnBroken = Callable[[AttemptId, ChannelId, str], None]


def _own_connection(patience_ms: float) -> list[tuple[str, int]]:
    """Returns the options of a connection that is not shared with other clients, and ends if nobody answers at all.

    Cancelling a stream does not free a thread that is writing to a dead connection; the end of the connection does.
    gRPC sends no keepalive once the stream is cancelled, or while anything comes back. What ends the connection is that
    gRPC also gives the keepalive time-out to TCP, as the time for which a peer may take nothing (`sign_period_ms`).
    """
    return [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", int(patience_ms)),
        ("grpc.keepalive_timeout_ms", int(patience_ms)),
        ("grpc.http2.max_pings_without_data", 0),
    ]


class FlightTransport:
    """Connects one slot with the others. It listens at a host, or in a folder of sockets.

    The callbacks run in any thread, so they only fill the slot's mailbox. A channel whose peer says nothing for
    `silence_s` is broken.
    """

    def __init__(
        self,
        job: str,
        place: str,
        token: str,
        on_frame: OnFrame,
        on_grant: OnGrant,
        on_broken: OnBroken,
        silence_s: float,
    ) -> None:
        self._job = job
        self._options = call_options(token)
        self._on_frame = on_frame
        self._on_grant = on_grant
        self._on_broken = on_broken
        self._patience_ms = silence_s * 1000
        self._left = AttemptId(0, 0)
        self._outgoing: dict[tuple[AttemptId, ChannelId], Outgoing] = {}
        self._incoming: dict[tuple[AttemptId, ChannelId], Incoming] = {}
        self._local: set[tuple[AttemptId, ChannelId]] = set()
        self._clients: dict[tuple[AttemptId, str], flight.FlightClient] = {}
        self._lock = threading.Lock()
        listening = location(place)
        self._server = _ChannelServer(self, listening, token)
        self.address = address(listening, self._server)
        threading.Thread(target=self._watch, name="channel watch", daemon=True).start()

    # --- the `Transport` port; called on the task thread ---

    def open(self, attempt: AttemptId, channel: ChannelId, address: str, schema: pa.Schema) -> None:
        if attempt <= self._left:
            return
        if address == self.address:
            self._open_local(attempt, channel)
            return
        outgoing = Outgoing(
            str(channel),
            partial(self._connect, attempt, channel, address),
            schema,
            partial(self._on_grant, attempt, channel),
            partial(self._on_broken, attempt, channel),
            self._patience_ms,
        )
        with self._lock:
            self._outgoing[attempt, channel] = outgoing

    def _open_local(self, attempt: AttemptId, channel: ChannelId) -> None:
        self._local.add((attempt, channel))
        with self._lock:
            early = self._incoming.pop((attempt, channel), None)
        if early is not None:  # the gate granted before the channel was opened
            self._on_grant(attempt, channel, early.granted)

    def send(self, attempt: AttemptId, channel: ChannelId, frame: Frame) -> None:
        if (attempt, channel) in self._local:
            self._on_frame(attempt, channel, frame)
        elif (outgoing := self._outgoing.get((attempt, channel))) is not None:
            outgoing.send(frame)

    def grant(self, attempt: AttemptId, channel: ChannelId, granted_total: int) -> None:
        if (attempt, channel) in self._local:
            self._on_grant(attempt, channel, granted_total)
        elif (incoming := self._receiver(attempt, channel)) is not None:
            incoming.grant(granted_total)

    def close(self, attempt: AttemptId) -> None:
        with self._lock:
            self._left = max(self._left, attempt)
            ends: list[Incoming | Outgoing] = []
            for found in (self._incoming, self._outgoing):
                ends += [found.pop(key) for key in list(found) if key[0] <= attempt]
            for key in [key for key in self._clients if key[0] <= attempt]:
                del self._clients[key]
        self._local = {key for key in self._local if key[0] > attempt}
        for end in ends:
            end.cancel()

    # --- streams; called on any thread ---

    def _connect(self, attempt: AttemptId, channel: ChannelId, address: str) -> Streams:
        with self._lock:
            client = self._clients.get((attempt, address))
            if client is None:
                client = flight.FlightClient(address, generic_options=_own_connection(self._patience_ms))
                if attempt > self._left:
                    self._clients[attempt, address] = client
        streams: Streams = client.do_exchange(descriptor(ChannelStream(self._job, attempt, channel)), self._options)
        return streams

    def _receiver(self, attempt: AttemptId, channel: ChannelId) -> Incoming | None:
        """Returns this end of an incoming channel; the gate may grant before the sender connects."""
        with self._lock:
            if attempt <= self._left:
                return None
            found = self._incoming.get((attempt, channel))
            if found is None:
                found = self._incoming[attempt, channel] = Incoming(
                    str(channel),
                    partial(self._on_frame, attempt, channel),
                    partial(self._on_broken, attempt, channel),
                    self._patience_ms,
                )
            return found

    def accept(self, stream: ChannelStream) -> Incoming | None:
        """Returns the receiving end for a new stream, or None if the stream has no place here."""
        if stream.job != self._job:
            return None
        incoming = self._receiver(stream.attempt, stream.channel)
        with self._lock:
            if incoming is None or incoming.connected:
                return None
            incoming.connected = True
            return incoming

    def _watch(self) -> None:
        """Shows life on every channel, and reports those whose peer does not."""
        sign_at_ms = 0.0
        while True:
            time.sleep(look_period_ms(self._patience_ms) / 1000)
            now_ms = time.monotonic() * 1000
            if signs := now_ms >= sign_at_ms:
                sign_at_ms = now_ms + sign_period_ms(self._patience_ms)
            with self._lock:
                ends: list[Outgoing | Incoming] = list(self._outgoing.values())
                ends += [end for end in self._incoming.values() if end.connected]
            for end in ends:
                if signs:
                    end.show_life()
                silent = end.watch.look(time.monotonic() * 1000)
                if silent is not None:
                    end.broken(silent)


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
        incoming = self._transport.accept(stream) if isinstance(stream, ChannelStream) else None
        if incoming is None:
            raise flight.FlightServerError(
                f"refused: {stream} belongs to another job or to an attempt that this slot has left, or is open already"
            )
        incoming.serve(reader, writer)
