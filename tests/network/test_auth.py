"""A call without the right token is refused, whatever stands in its place."""

from __future__ import annotations

import pytest
from pyarrow import flight

from engine.network.auth import RequireToken


@pytest.mark.parametrize(
    "given", [[], [""], ["secret"], ["Bearer wrong"], ["Bearer ſecret"], ["Bearer \udcff"], [b"\xff"]]
)
def test_any_other_token_is_refused(given: list[str]) -> None:
    with pytest.raises(flight.FlightUnauthenticatedError, match="wrong or missing token"):
        RequireToken("secret").start_call(None, {"authorization": given})
    RequireToken("secret").start_call(None, {"authorization": ["Bearer secret"]})
