"""Decides when the peer of a channel has been silent for too long. Pure: callers pass the time."""

from __future__ import annotations

from engine.protocol.supervision import LOOK_MS, Silence

LOOKS = 10
SIGNS = 3


def look_period_ms(patience_ms: float) -> float:
    """Returns how often to look at a channel: ten times in `patience_ms`, or once a second."""
    return min(LOOK_MS, patience_ms / LOOKS)


def sign_period_ms(patience_ms: float) -> float:
    """Returns how often to show life on a channel: three times in `patience_ms`, or once a second.

    Not as often as one looks: TCP asks a peer that has no room whether it has some after 200 ms in which nothing came,
    and only then begins to count the time until it gives the connection up. Signs that come faster keep it for ever.
    """
    return min(LOOK_MS, patience_ms / SIGNS)


class PeerWatch:
    """One end of a channel waits for signs of life of the other: frames, grants, or a sign that is nothing else."""

    def __init__(self, peer: str, patience_ms: float) -> None:
        self._peer = peer
        self._patience_ms = patience_ms
        self._silence = Silence(look_period_ms(patience_ms))

    def heard(self) -> None:
        self._silence.heard()

    def look(self, now_ms: float) -> str | None:
        """Returns why the channel is broken if its peer has been silent for too long."""
        if self._silence.look(now_ms) <= self._patience_ms:
            return None
        return f"its {self._peer} has been silent for {self._patience_ms / 1000:.1f} s"
