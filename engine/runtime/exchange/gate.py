"""`InputGate`: the inputs of one subtask. It decides which element is next, aligns barriers and merges watermarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from engine.core.ports import Frame, Transport
from engine.protocol.alignment.aligner import BarrierAligner, BarrierOutcome
from engine.protocol.config import IN_FLIGHT_TARGET_MS
from engine.protocol.credits import ChannelLimits, GateCredit
from engine.protocol.ids import AttemptId, ChannelId
from engine.protocol.pace import Pace
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK, Barrier, EndOfData, StreamStatus, Watermark
from engine.runtime.exchange.channels import InputChannel


@dataclass(frozen=True)
class Second:
    """Rows of the second input."""

    batch: pa.RecordBatch


@dataclass(frozen=True)
class Ended:
    """Every channel has delivered EndOfData."""


Taken: TypeAlias = pa.RecordBatch | Second | Watermark | StreamStatus | Ended | BarrierOutcome


class InputGate:
    """Polls the input channels in turn. `second`: the edges of the second input.

    `timeless`: edges without event time next to others that have it; they do not hold the clock back.
    """

    def __init__(
        self,
        attempt: AttemptId,
        channels: Sequence[ChannelId],
        aligner: BarrierAligner,
        transport: Transport,
        limits: ChannelLimits | None = None,
        second: frozenset[str] = frozenset(),
        timeless: frozenset[str] = frozenset(),
        in_flight_target_ms: float = IN_FLIGHT_TARGET_MS,
    ) -> None:
        limits = limits or ChannelLimits()
        self._second = second
        self.rows_received: dict[str, int] = {channel.edge: 0 for channel in channels}
        self._attempt = attempt
        self._transport = transport
        self._channels = [InputChannel(channel) for channel in channels]
        self._index = {channel: position for position, channel in enumerate(channels)}
        self._aligner = aligner
        self._credit = GateCredit(len(channels), limits)
        self._credit.bound(0)  # until it is known how fast this gate consumes
        self._pace = Pace(in_flight_target_ms)
        self._watermarks = [MAX_WATERMARK if channel.edge in timeless else MIN_WATERMARK for channel in channels]
        self._watermark = MIN_WATERMARK
        self._behind = self._watermarks.count(MIN_WATERMARK)  # active channels that hold the clock back
        self._idle_channels = [False] * len(channels)
        self._idle = False
        self._ended = 0
        self._next = 0
        self._ready: list[Taken] = []
        self._barriers: dict[int, Barrier] = {}

    def start(self) -> None:
        self._grant(1)

    def receive(self, channel: ChannelId, frame: Frame) -> None:
        position = self._index[channel]
        self._channels[position].receive(frame)
        self._credit.on_frame(position, frame.backlog)

    def on_abort(self, checkpoint: int) -> None:
        self._aligner.on_abort(checkpoint)

    def barrier(self, checkpoint: int) -> Barrier:
        """Returns the barrier of the aligned checkpoint; forgets it and all earlier ones."""
        result = self._barriers[checkpoint]
        self._barriers = {c: barrier for c, barrier in self._barriers.items() if c > checkpoint}
        return result

    def poll(self, max_rows: int, now_ms: float) -> Taken | None:
        """Returns the next thing to handle: rows, a watermark, a change of idleness, an aligned barrier, or the end."""
        in_flight = self._pace.look(now_ms)
        if in_flight is not None:
            self._credit.bound(in_flight)
        while not self._ready:
            position = self._pick()
            if position is None:
                return None
            channel = self._channels[position]
            element, freed = channel.take(max_rows)
            if freed:
                self._credit.on_consumed(position, freed)
                self._grant(self._credit.hold)
            self._pace.took(freed, now_ms)
            if isinstance(element, pa.RecordBatch):
                self.rows_received[channel.id.edge] += element.num_rows
                return Second(element) if channel.id.edge in self._second else element
            if isinstance(element, Watermark):
                self._on_watermark(position, element.timestamp_ms)
            elif isinstance(element, StreamStatus):
                self._idle_channels[position] = element.idle
                self._advance()
            elif isinstance(element, Barrier):
                self._barriers[element.checkpoint] = element
                self._ready.extend(self._aligner.on_barrier(position, element.checkpoint, now_ms))
            else:
                assert isinstance(element, EndOfData)
                self._ended += 1
                if self._ended == len(self._channels):
                    self._ready.append(Ended())
        return self._ready.pop(0)

    def _pick(self) -> int | None:
        """Picks channels in turn, so that none starves; skips channels that wait for the barriers of others (D2)."""
        count = len(self._channels)
        for step in range(count):
            position = (self._next + step) % count
            if len(self._channels[position]) and not self._aligner.blocked(position):
                self._next = (position + 1) % count
                return position
        return None

    def _on_watermark(self, position: int, timestamp_ms: int) -> None:
        """Notes a watermark. Scans all channels only when the last one that held the clock back has advanced."""
        before = self._watermarks[position]
        self._watermarks[position] = max(before, timestamp_ms)
        if before <= self._watermark < timestamp_ms and not self._idle_channels[position]:
            self._behind -= 1
        if not self._behind:
            self._advance()

    def _advance(self) -> None:
        """Sets the clock to the lowest watermark of the active channels; it never goes back.

        A channel at +∞ has ended and holds nothing back, but does not end time while another is only idle. If all
        channels that have not ended are idle, the clock is their highest watermark, as if the one furthest ahead had
        fallen idle last.
        """
        inputs = zip(self._watermarks, self._idle_channels, strict=True)
        going = [(mark, idle) for mark, idle in inputs if mark < MAX_WATERMARK]
        active = [mark for mark, idle in going if not idle]
        idle = bool(going) and not active
        if self._idle and not idle:
            self._ready.append(StreamStatus(idle=False))
        clock = min(active) if active else max((mark for mark, _ in going), default=MAX_WATERMARK)
        if clock > self._watermark:
            self._watermark = clock
            self._ready.append(Watermark(clock))
        if idle and not self._idle:
            self._ready.append(StreamStatus(idle=True))
        self._idle = idle
        self._behind = sum(mark <= self._watermark for mark in active)

    def _grant(self, hold: int) -> None:
        for position, granted_total in self._credit.grants(hold):
            self._transport.grant(self._attempt, self._channels[position].id, granted_total)
