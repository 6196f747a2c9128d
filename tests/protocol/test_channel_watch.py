"""How often a channel is looked at and shows life, and how soon silence is noticed. The test says what time it is."""

import pytest

from engine.protocol.channel_watch import PeerWatch, look_period_ms, sign_period_ms

TCP_PROBE_MS = 200.0
"""The shortest time after which TCP asks a peer without room again; every packet that comes begins it anew."""


@pytest.mark.parametrize("patience_s", [1, 1.5, 3, 10, 60])
def test_signs_of_life_come_often_enough_for_the_peer_and_seldom_enough_for_tcp(patience_s: float) -> None:
    patience_ms = patience_s * 1000
    assert TCP_PROBE_MS < sign_period_ms(patience_ms) <= 1000
    assert sign_period_ms(patience_ms) + look_period_ms(patience_ms) < patience_ms / 2


@pytest.mark.promise("H8")
@pytest.mark.parametrize("patience_s", [1, 1.5, 5, 10, 60])
@pytest.mark.parametrize("last_sign", [0.0, 0.3, 0.999])
def test_a_silent_peer_is_noticed_within_its_patience_and_two_looks(patience_s: float, last_sign: float) -> None:
    """`last_sign`: where between two looks the last sign of life comes. TCP itself waits for many minutes."""
    patience_ms = patience_s * 1000
    watch, look_ms = PeerWatch("sender", patience_ms), look_period_ms(patience_ms)
    assert watch.look(0) is None
    watch.heard()
    silent_from_ms, now_ms = last_sign * look_ms, 0.0
    while (why := watch.look(now_ms)) is None:
        now_ms += look_ms
        assert now_ms < 2 * patience_ms
    assert why == f"its sender has been silent for {patience_s:.1f} s"
    assert patience_ms - look_ms < now_ms - silent_from_ms <= patience_ms + 2 * look_ms


@pytest.mark.parametrize("patience_s", [1, 1.5, 5, 10, 60])
def test_a_peer_whose_signs_come_late_but_in_time_is_not_silent(patience_s: float) -> None:
    patience_ms = patience_s * 1000
    watch, look_ms = PeerWatch("receiver", patience_ms), look_period_ms(patience_ms)
    for look in range(200):
        if look % 9 == 0:
            watch.heard()
        assert watch.look(look * look_ms) is None
