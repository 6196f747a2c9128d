"""Credit-based flow control: how many bytes each sender may send.

Invariant: bytes in flight and queued on a channel exceed what its receiver granted by less than one frame. So the
memory of a gate is bounded by `capacity` and a frame per channel, even if its operators are stuck.
"""

from __future__ import annotations

from dataclasses import dataclass

CHANNEL_BYTES = 4 << 20
"""A channel's own share: the bytes that its receiver always accepts. A gate's floating share is this times channels."""

MAX_FRAME_BYTES = 2 << 20
"""The largest frame: senders slice batches to it. So a channel's own share always lets one frame through."""


LEAST_BYTES = 4 << 10
"""The least share of a channel, however slowly its gate consumes."""


@dataclass(frozen=True)
class ChannelLimits:
    """The sizes of a channel's own share and of a frame. The share must hold a frame, or the channel could starve."""

    own_bytes: int = CHANNEL_BYTES
    frame_bytes: int = MAX_FRAME_BYTES
    least_bytes: int = LEAST_BYTES

    def __post_init__(self) -> None:
        assert 0 < self.frame_bytes <= self.own_bytes and 0 < self.least_bytes <= self.own_bytes


class SenderCredit:
    """Tracks how much the sender of one channel may still send."""

    def __init__(self) -> None:
        self._granted = 0
        self._used = 0

    def grant(self, granted_total: int) -> None:
        """Takes a grant. Grants are running totals, so a repeated or late one does no harm."""
        self._granted = max(self._granted, granted_total)

    @property
    def available(self) -> int:
        return self._granted - self._used

    def allows(self, size: int) -> bool:
        """Returns whether a frame may be sent: any credit is enough, because a gate may grant less than a frame."""
        return not size or self.available > 0

    def use(self, size: int) -> None:
        assert self.allows(size), f"{size} bytes sent with a credit of {self.available}"
        self._used += size


class GateCredit:
    """Decides what a gate grants: to each channel its own share, and a floating share by the senders' backlogs.

    `bound` lowers what is granted in total, down to `least_bytes` per channel. The cost of a call grows with the
    channels that have a backlog, not with the number of all channels.
    """

    def __init__(self, channels: int, limits: ChannelLimits | None = None) -> None:
        limits = limits or ChannelLimits()
        self._own = self._most = limits.own_bytes
        self._least = limits.least_bytes
        self._frame = limits.frame_bytes
        self._floating = self._own * channels
        self._granted = [0] * channels  # running totals
        self._consumed = [0] * channels
        self._backlog = [0] * channels
        self._lent = 0  # bytes of the floating share that channels hold
        self._wanting = 0  # the backlog of all channels
        self._changed = set(range(channels))  # all others would get no more than at the last call

    @property
    def capacity(self) -> int:
        """The most bytes that are granted at a time."""
        return 2 * self._most * len(self._granted)

    @property
    def hold(self) -> int:
        """The size from which a grant is worth a message."""
        return max(1, self._own // 4)

    def bound(self, in_flight: int) -> None:
        """Grants about so many bytes in total from now on. What is granted already stays granted."""
        channels = len(self._granted)
        own = min(self._most, max(self._least, in_flight // (2 * channels)))
        if self._own // 2 < own < self._own + self._own // 2 and own != self._most:
            return  # not worth a change: the cost of one grows with the channels
        self._own, self._floating = own, own * channels
        self._lent = sum(self._borrowed(channel) for channel in range(channels))
        self._changed = set(range(channels))

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
        """Returns the bytes granted and not yet consumed: unused by the sender, in flight, or queued here."""
        return self._granted[channel] - self._consumed[channel]

    def grants(self, hold: int) -> list[tuple[int, int]]:
        """Returns (channel, new running total) for each grant that is worth a message.

        A grant is worth one if it adds at least `hold` bytes, or if little is outstanding.
        """
        free = max(0, self._floating - self._lent)
        result = []
        for channel in sorted(self._changed):
            backlog, borrowed = self._backlog[channel], self._borrowed(channel)
            share = free * backlog // self._wanting if backlog else 0
            more = self._own + max(min(share, backlog), borrowed) - self.outstanding(channel)
            if more >= hold or (more > 0 and self.outstanding(channel) < min(self._frame, self._own // 2)):
                self._granted[channel] += more
                self._lent += self._borrowed(channel) - borrowed
                result.append((channel, self._granted[channel]))
        self._changed = {channel for channel in self._changed if self._backlog[channel]}
        return result

    def _borrowed(self, channel: int) -> int:
        """Returns the bytes that a channel holds beyond its own share."""
        return max(0, self.outstanding(channel) - self._own)
