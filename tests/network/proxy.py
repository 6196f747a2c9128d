"""A TCP proxy on loopback that can stop forwarding: its connections stay open, and nothing comes through any more."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Forwards connections to `port`. `stall` stops those that are open now; later ones are forwarded again.

    Its two directions are `there`, to the port, and `back`. `room`: the bytes that it takes from a stalled connection;
    then it tells the sender, as TCP does, that there is no room.
    """

    def __init__(self, port: int, room: int | None = None) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        if room is not None:
            self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)  # its connections inherit that
        self._open: list[tuple[threading.Event, threading.Event]] = []
        self._sockets: list[socket.socket] = [self._server]
        self.address = f"grpc://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connections(self) -> int:
        return len(self._open)

    def stall(self, there: bool = True, back: bool = True) -> None:
        for stalled in self._open:
            for event, wanted in zip(stalled, (there, back), strict=True):
                if wanted:
                    event.set()

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                there, back = threading.Event(), threading.Event()
                self._sockets += [near, far]
                self._open.append((there, back))
                for source, target, stalled in ((near, far, there), (far, near, back)):
                    threading.Thread(target=_pump, args=(source, target, stalled), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, stalled: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if stalled.is_set():
                return  # the sockets stay open
            target.sendall(data)
        if not stalled.is_set():
            target.shutdown(socket.SHUT_RDWR)
