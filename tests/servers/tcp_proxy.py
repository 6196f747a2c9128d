"""A TCP proxy in front of a real server, which swallows, cuts and holds what passes when a test asks it to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Watch = Callable[[bytes], bool]


class TcpProxy:
    """`swallow`: sees each request; when it says True, all answers of the server are swallowed from then on.

    `swallowed` is set once an answer was swallowed: the server has done what it was asked for, and nobody heard of it.
    """

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.server_port = 0
        self.swallow: Watch | None = None
        self.swallowed = threading.Event()
        self._mute = threading.Event()
        self._open: list[socket.socket] = []

    @contextmanager
    def running(self) -> Iterator[TcpProxy]:
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            yield self
        finally:
            self._listening.close()
            self.cut()

    def heal(self) -> None:
        """Ends every connection, and lets everything pass again."""
        self.swallow = None
        self.cut()
        self._mute.clear()

    def cut(self) -> None:
        """Ends every connection."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open = []

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self._open += [client, server]
            threading.Thread(target=self._pass, args=(client, server, self._request), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, self._answer), daemon=True).start()

    def _pass(self, of: socket.socket, to: socket.socket, seen: Callable[[bytes], bool]) -> None:
        with suppress(OSError):
            while data := of.recv(1 << 16):
                if seen(data):
                    to.sendall(data)
        with suppress(OSError):
            to.shutdown(socket.SHUT_WR)

    def _request(self, data: bytes) -> bool:
        if self.swallow is not None and self.swallow(data):
            self._mute.set()
        return True

    def _answer(self, data: bytes) -> bool:
        if self._mute.is_set():
            self.swallowed.set()
            return False
        return True


def kafka_request(key: int) -> Watch:
    """Says whether data begin with a request of this kind of Kafka's protocol: 26 ends a transaction."""
    return lambda data: len(data) >= 6 and int.from_bytes(data[4:6], "big") == key
