"""Credit-based flow control: how many bytes each sender may send.

Invariant: bytes in flight and queued on a channel never exceed what its receiver granted. So the memory of a gate is
bounded by `capacity`, even if its operators are stuck.
"""

from __future__ import annotations

from dataclasses import dataclass

CHANNEL_BYTES = 4 << 20
"""A channel's own share: the bytes that its receiver always accepts. A gate's floating share is this times channels."""

MAX_FRAME_BYTES = 2 << 20
"""The largest frame: senders slice batches to it. So a channel's own share always lets one frame through."""


@dataclass(frozen=True)
class ChannelLimits:
    """The sizes of a channel's own share and of a frame. The share must hold a frame, or the channel could starve."""

    own_bytes: int = CHANNEL_BYTES
    frame_bytes: int = MAX_FRAME_BYTES

    def __post_init__(self) -> None:
        assert 0 < self.frame_bytes <= self.own_bytes


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

    def use(self, size: int) -> None:
        assert size <= self.available, f"{size} bytes sent with a credit of {self.available}"
        self._used += size


class GateCredit:
    """Decides what a gate grants: to each channel its own share, and a floating share by the senders' backlogs.

    The cost of a call grows with the channels that have a backlog, not with the number of all channels.
    """

    def __init__(self, channels: int, limits: ChannelLimits | None = None) -> None:
        limits = limits or ChannelLimits()
        self._own = limits.own_bytes
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
        """Returns the bytes granted and not yet consumed: unused by the sender, in flight, or queued here."""
        return self._granted[channel] - self._consumed[channel]

    def grants(self, hold: int) -> list[tuple[int, int]]:
        """Returns (channel, new running total) for each grant that is worth a message.

        A grant is worth one if it adds at least `hold` bytes, or if less than a frame is outstanding. The caller never
        passes a smaller `hold` than before.
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
        """Returns the bytes that a channel holds beyond its own share."""
        return max(0, self.outstanding(channel) - self._own)
