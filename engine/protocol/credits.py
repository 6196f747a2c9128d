"""Credit-based flow control: who may send how much.

Invariant: bytes in flight and queued on a channel never exceed what its receiver granted; so the memory of a gate is
bounded by `capacity`, however stuck what stands behind it is.
"""

from __future__ import annotations

from dataclasses import dataclass

CHANNEL_BYTES = 4 << 20
"""What a channel's receiver always takes; the floating share of a gate is of the same size per channel."""

MAX_FRAME_BYTES = 2 << 20
"""No batch on a channel is larger (senders slice), so one grant of a channel's own share always lets one through."""


@dataclass(frozen=True)
class ChannelLimits:
    """`own_bytes` must take at least one frame, or a channel could starve."""

    own_bytes: int = CHANNEL_BYTES
    frame_bytes: int = MAX_FRAME_BYTES

    def __post_init__(self) -> None:
        assert 0 < self.frame_bytes <= self.own_bytes


class SenderCredit:
    """What one channel's sender may still send."""

    def __init__(self) -> None:
        self._granted = 0
        self._used = 0

    def grant(self, granted_total: int) -> None:
        """Grants are running totals, so a repeated or late one does no harm."""
        self._granted = max(self._granted, granted_total)

    @property
    def available(self) -> int:
        return self._granted - self._used

    def use(self, size: int) -> None:
        assert size <= self.available, f"{size} bytes sent with a credit of {self.available}"
        self._used += size


class GateCredit:
    """What a gate grants: each channel's own share, and a floating share by the backlog that senders report.

    The cost of a call grows with the channels that have a backlog, not with all that a gate has.
    """

    def __init__(self, channels: int, limits: ChannelLimits | None = None) -> None:
        limits = limits or ChannelLimits()
        self._own = limits.own_bytes
        self._frame = limits.frame_bytes
        self._floating = self._own * channels
        self._granted = [0] * channels  # running totals
        self._consumed = [0] * channels
        self._backlog = [0] * channels
        self._lent = 0  # of the floating share, by all channels
        self._wanting = 0  # the backlog of all channels
        self._changed = set(range(channels))  # the others would get no more than at the last call

    @property
    def capacity(self) -> int:
        return self._own * len(self._granted) + self._floating

    def on_frame(self, channel: int, backlog: int) -> None:
        self._wanting += backlog - self._backlog[channel]
        self._backlog[channel] = backlog
        if backlog:
            self._changed.add(channel)

    def on_consumed(self, channel: int, size: int) -> None:
        self._lent -= self._borrowed(channel)
        self._consumed[channel] += size
        self._lent += self._borrowed(channel)
        self._changed.add(channel)

    def outstanding(self, channel: int) -> int:
        """Granted and not yet consumed: in flight, queued here, or not yet used."""
        return self._granted[channel] - self._consumed[channel]

    def grants(self, hold: int) -> list[tuple[int, int]]:
        """New running totals per channel that are worth a message: at least `hold` bytes more than before.

        `hold` is never less than in an earlier call.
        """
        free = max(0, self._floating - self._lent)
        result = []
        for channel in sorted(self._changed):
            backlog, borrowed = self._backlog[channel], self._borrowed(channel)
            share = free * backlog // self._wanting if backlog else 0
            more = self._own + max(min(share, backlog), borrowed) - self.outstanding(channel)
            if more >= hold or (more > 0 and self.outstanding(channel) < self._frame):
                self._granted[channel] += more
                self._lent += self._borrowed(channel) - borrowed
                result.append((channel, self._granted[channel]))
        self._changed = {channel for channel in self._changed if self._backlog[channel]}
        assert self._lent <= self._floating
        return result

    def _borrowed(self, channel: int) -> int:
        """What it holds beyond its own share."""
        return max(0, self.outstanding(channel) - self._own)
