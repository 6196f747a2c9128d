"""`BoundedProtocol`: uvicorn's HTTP connections, with a bound on their number and on the time for a request.

uvicorn waits for ever for the rest of a request, so whoever can connect could hold all descriptors of the JobMaster.
Invariant: at most `CONNECTIONS` stay open, and a request that comes at once is answered however many others wait.
"""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 64
HEADERS_S = 5.0
"""The time from the connection, or from the last answer, until the headers of a request must have come."""


class BoundedProtocol(H11Protocol):
    """A connection. Over the bound, the one that has waited longest for its request is closed."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()
        others = cast(set[BoundedProtocol], self.connections)
        waiting = [other for other in others if other._deadline and not other.transport.is_closing()]
        if len(self.connections) > CONNECTIONS and waiting:
            min(waiting, key=BoundedProtocol._waits_until).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel()

    def _waits_until(self) -> float:
        return self._deadline.when() if self._deadline else float("inf")

    def _look(self) -> None:
        """Sets the deadline while no request is being answered. Bytes that drip in do not move it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADERS_S, self.transport.abort)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
