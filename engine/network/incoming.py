"""`Incoming`: the receiver's end of a channel. A thread of the server reads frames, another thread writes grants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from pyarrow import flight

from engine.core.ports import Frame
from engine.network.outgoing import BROKEN, Once, first_line
from engine.network.wire import SIGN_OF_LIFE, read_frame, write_grant
from engine.protocol.channel_watch import PeerWatch


class Incoming:
    """`on_broken` is called once, if the channel ends before `cancel`, or if its sender is silent for `patience_ms`."""

    def __init__(
        self, name: str, on_frame: Callable[[Frame], None], on_broken: Callable[[str], None], patience_ms: float
    ) -> None:
        self.watch = PeerWatch("sender", patience_ms)
        self.connected = False
        self._name = name
        self._on_frame = on_frame
        self._broken = Once(on_broken)
        self.granted = 0
        self._grants: SimpleQueue[int | None] = SimpleQueue()
        self._cancelled = False

    def grant(self, granted_total: int) -> None:
        """Sends a grant, or keeps it until the sender connects. A total that is not higher says nothing."""
        if granted_total > self.granted:
            self.granted = granted_total
            self._grants.put(granted_total)

    def show_life(self) -> None:
        """Sends the last grant again. Grants are running totals, so that changes nothing."""
        if self.connected and self._grants.empty():
            self._grants.put(self.granted)

    def cancel(self) -> None:
        self._cancelled = True
        self._grants.put(None)

    def broken(self, why: str) -> None:
        if not self._cancelled:
            self._broken(why)

    def serve(self, reader: flight.MetadataRecordBatchReader, writer: flight.MetadataRecordBatchWriter) -> None:
        """Receives frames until the channel is closed."""
        out = threading.Thread(target=self._write, args=(writer,), name=f"grants {self._name}", daemon=True)
        out.start()
        try:
            while True:
                frame = read_frame(reader.read_chunk())
                if self._cancelled:
                    return
                self.watch.heard()
                if frame.sequence != SIGN_OF_LIFE.sequence:
                    self._on_frame(frame)
        except StopIteration:
            self.broken("its sender closed it")
        except BROKEN as error:
            self.broken(first_line(error))
        finally:
            self._grants.put(None)
            out.join()  # Arrow frees the writer when this method returns; a write under way would crash the process

    def _write(self, writer: flight.MetadataRecordBatchWriter) -> None:
        try:
            while (granted := self._grants.get()) is not None:
                while not self._grants.empty():  # only the newest matters
                    newer = self._grants.get()
                    if newer is None:
                        return
                    granted = newer
                write_grant(writer, granted)
        except BROKEN:
            pass  # the reading side reports the broken stream
