"""Watermark alignment: no split of a group of sources is read further ahead of the slowest than the group allows.

The slots report the lowest watermark of each source subtask; `AlignmentGroups` decides the limit of each group: its
minimum plus the drift that it allows. A split whose watermark is above the limit is not read. A subtask that has
nothing to read (idle, or finished) is left out of the minimum.

Invariant: the split that holds the minimum is never above the limit, so the group always moves on. While all members
only advance, a limit that is known late is too low and never too high, so the drift is bounded at every moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK


@dataclass(frozen=True)
class WatermarkAlignment:
    """What the author declares. Slots report and the JobMaster announces at most once per interval what advances."""

    group: str
    max_drift_ms: int
    update_interval_ms: int

    def __str__(self) -> str:
        return f"{self.max_drift_ms} ms in group {self.group!r}, every {self.update_interval_ms} ms"


class AlignmentWait(msgspec.Struct, frozen=True):
    """A source subtask does not read `paused` of its `reading` splits: they are ahead of their group.

    `drift_ms`: how far the first of them is ahead of the group's minimum; None as long as a member has no watermark.
    """

    group: str
    paused: int
    reading: int
    drift_ms: int | None
    max_drift_ms: int


def urgent(before_ms: int | None, now_ms: int | None) -> bool:
    """Returns True if a change is told at once: all but that of a watermark which advances.

    None: nothing is known yet, or there is nothing to read.
    """
    return before_ms is None or before_ms == MIN_WATERMARK or now_ms is None or now_ms < before_ms


def limit_of(lowest_ms: int | None, max_drift_ms: int) -> int:
    """Returns the highest watermark up to which a split is read. None: no member holds the others back."""
    return MAX_WATERMARK if lowest_ms is None else min(lowest_ms + max_drift_ms, MAX_WATERMARK)


def drift_of(watermark_ms: int, limit_ms: int, max_drift_ms: int) -> int | None:
    """Returns how far a watermark is ahead of the group's minimum; None as long as a member has no watermark."""
    lowest_ms = limit_ms - max_drift_ms
    return None if lowest_ms <= MIN_WATERMARK else watermark_ms - lowest_ms


@dataclass
class _Group:
    alignment: WatermarkAlignment
    unheard: set[str]
    reported: dict[str, int | None] = field(default_factory=dict)
    lowest_ms: int | None = None
    """The minimum now: a job of many subtasks asks for it far more often than it changes."""
    announced_ms: int | None = None
    announced_at_ms: float | None = None

    def on_report(self, subtask: str, watermark_ms: int | None) -> None:
        self.unheard.discard(subtask)
        self.reported[subtask] = watermark_ms
        self.lowest_ms = self.minimum()

    def minimum(self) -> int | None:
        return min((mark for mark in self.reported.values() if mark is not None), default=None)

    def due_ms(self) -> float | None:
        """Returns when to announce the limit: at once, later, or never (None)."""
        if self.unheard:
            return None
        if self.announced_at_ms is None:
            return 0.0
        if self.lowest_ms == self.announced_ms:
            return None
        later_ms = self.announced_at_ms + self.alignment.update_interval_ms
        return 0.0 if urgent(self.announced_ms, self.lowest_ms) else later_ms


class AlignmentGroups:
    """Decides the limits of one attempt. `members`: the source subtasks of each group.

    There is no limit before every member has reported: until then a split is read only until it has a watermark.
    """

    def __init__(self, members: Mapping[WatermarkAlignment, Sequence[str]]) -> None:
        self._groups = [_Group(alignment, set(subtasks)) for alignment, subtasks in members.items()]
        self._newest: dict[str, int] = {}
        self.announcements = 0
        """The number of the last announcement."""

    def on_report(self, number: int, watermarks: Mapping[str, int | None]) -> None:
        """Notes the lowest watermark of each subtask that a slot reports; None: it has nothing to read.

        `number` grows with each report of the slot. A report that comes again, after newer ones, is ignored: its
        watermarks would hold the group back for ever, since the slot reports only what changes.
        """
        new = {subtask: mark for subtask, mark in watermarks.items() if number > self._newest.get(subtask, 0)}
        self._newest |= dict.fromkeys(new, number)
        for group in self._groups:
            for subtask, watermark_ms in new.items():
                if subtask in group.reported or subtask in group.unheard:
                    group.on_report(subtask, watermark_ms)

    def announce(self, now_ms: float) -> dict[str, int]:
        """Returns the limits that the slots have to hear of now, by group."""
        limits: dict[str, int] = {}
        for group in self._groups:
            due_ms = group.due_ms()
            if due_ms is None or due_ms > now_ms:
                continue
            group.announced_ms, group.announced_at_ms = group.lowest_ms, now_ms
            limits[group.alignment.group] = limit_of(group.lowest_ms, group.alignment.max_drift_ms)
        self.announcements += bool(limits)
        return limits

    @property
    def wakeup_ms(self) -> float | None:
        """When `announce` has to be called again; None: after the next report."""
        return min((due for group in self._groups if (due := group.due_ms()) is not None), default=None)
