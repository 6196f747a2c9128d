"""`Outgoing`: the sender's end of a channel. One thread connects and writes frames, another reads grants.

Invariant: no method waits for the network, because the task thread calls them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

import pyarrow as pa
from pyarrow import flight

from engine.core.ports import Frame
from engine.network.wire import SIGN_OF_LIFE, write_frame
from engine.protocol.channel_watch import PeerWatch

BROKEN = (flight.FlightError, pa.ArrowException, OSError)

Streams = tuple[flight.FlightStreamWriter, flight.FlightStreamReader]


class Outgoing:
    """`connect` opens the stream.

    `on_broken` is called once, if the channel ends before `cancel`, or if its receiver is silent for `patience_ms`.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Streams],
        schema: pa.Schema,
        on_grant: Callable[[int], None],
        on_broken: Callable[[str], None],
        patience_ms: float,
    ) -> None:
        self.watch = PeerWatch("receiver", patience_ms)
        self._queue: SimpleQueue[Frame | None] = SimpleQueue()
        self._name = name
        self._connect = connect
        self._schema = schema
        self._on_grant = on_grant
        self._broken = Once(on_broken)
        self._granted = 0
        self._cancelled = False
        self._reader: flight.FlightStreamReader | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._write, name=f"send {name}", daemon=True).start()

    def send(self, frame: Frame) -> None:
        self._queue.put(frame)

    def show_life(self) -> None:
        if self._queue.empty():
            self._queue.put(SIGN_OF_LIFE)

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            reader = self._reader
        self._queue.put(None)
        if reader is not None:
            reader.cancel()

    def broken(self, why: str) -> None:
        if not self._cancelled:
            self._broken(why)

    def _write(self) -> None:
        writer = None
        try:
            writer, reader = self._connect()
            with self._lock:
                self._reader = reader
                cancelled = self._cancelled
            if cancelled:
                reader.cancel()
                return
            threading.Thread(target=self._read, args=(reader,), name=f"credit {self._name}", daemon=True).start()
            writer.begin(self._schema)
            while (frame := self._queue.get()) is not None and not self._cancelled:
                write_frame(writer, frame)
        except BROKEN as error:
            self.broken(first_line(error))
        finally:
            with suppress(*BROKEN):  # Arrow would print the error if it had to close the stream itself
                if writer is not None:
                    writer.close()

    def _read(self, reader: flight.FlightStreamReader) -> None:
        try:
            while True:
                total = int.from_bytes(reader.read_chunk().app_metadata.to_pybytes(), "little")
                self.watch.heard()
                if total > self._granted:  # a repeated total is a sign of life
                    self._granted = total
                    self._on_grant(total)
        except StopIteration:
            self.broken("its receiver closed it")
        except BROKEN as error:
            self.broken(first_line(error))


class Once:
    """Passes on the first report that a channel is broken. Two threads may report at the same time."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._first = threading.Lock()

    def __call__(self, why: str) -> None:
        if self._first.acquire(blocking=False):
            self._report(why)


def first_line(error: BaseException) -> str:
    return str(error).split("\n")[0]
