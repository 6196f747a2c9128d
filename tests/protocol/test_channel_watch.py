"""How often a channel is looked at, and shows life."""

import pytest

from engine.protocol.channel_watch import look_period_ms, sign_period_ms

TCP_PROBE_MS = 200.0
"""The shortest time after which TCP asks a peer without room again; every packet that comes begins it anew."""


@pytest.mark.parametrize("patience_s", [1, 1.5, 3, 10, 60])
def test_signs_of_life_come_often_enough_for_the_peer_and_seldom_enough_for_tcp(patience_s: float) -> None:
    patience_ms = patience_s * 1000
    assert TCP_PROBE_MS < sign_period_ms(patience_ms) <= 1000
    assert sign_period_ms(patience_ms) + look_period_ms(patience_ms) < patience_ms / 2
