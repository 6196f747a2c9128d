"""Bearer tokens on every Flight call. Invariant: a call without the right token is refused before its handler runs."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence

from pyarrow import flight

_HEADER = "authorization"


def call_options(token: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(_HEADER.encode(), f"Bearer {token}".encode())])


class RequireToken(flight.ServerMiddlewareFactory):
    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> None:
        given = headers.get(_HEADER) or [""]
        # `compare_digest` takes text only if it is ASCII.
        if not hmac.compare_digest(str(given[0]).encode(errors="replace"), self._expected):
            raise flight.FlightUnauthenticatedError("wrong or missing token")
