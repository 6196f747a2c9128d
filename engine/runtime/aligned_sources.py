"""`AlignedSources`: reports how far the aligned sources of a slot have come, and tells them how far they may read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.protocol.signals import MIN_WATERMARK
from engine.protocol.watermark_alignment import WatermarkAlignment, urgent
from engine.runtime.source_head import SourceHead
from engine.runtime.subtask import Subtask


class AlignedSources:
    """The source subtasks of one attempt that belong to an alignment group.

    A subtask without a watermark is not reported before it has one, since the JobMaster waits for it anyway.
    """

    def __init__(self, subtasks: Sequence[Subtask]) -> None:
        heads = [(subtask, subtask.source, subtask.source.alignment) for subtask in subtasks if subtask.source]
        self._members: list[tuple[Subtask, SourceHead, WatermarkAlignment]] = [
            (subtask, head, alignment) for subtask, head, alignment in heads if alignment is not None
        ]
        self._interval_ms = min((alignment.update_interval_ms for *_, alignment in self._members), default=0)
        self._reported: dict[str, int | None] = {}
        self._reported_at_ms = 0.0
        self._announcement = 0
        self.reports = 0
        """The number of the last report."""

    def report(self, now_ms: float) -> dict[str, int | None]:
        """Returns the lowest watermarks that have to be reported now, by subtask."""
        changed, due_ms = self._changed()
        if not changed or now_ms < due_ms:
            return {}
        self._reported |= changed
        self._reported_at_ms = now_ms
        self.reports += 1
        return changed

    def wakeup_ms(self) -> float | None:
        """Returns when `report` has something to report; None: not before something is read."""
        changed, due_ms = self._changed()
        return due_ms if changed else None

    def on_limits(self, number: int, limits: Mapping[str, int]) -> None:
        """Lets the sources of these groups read up to the limits of a new announcement. Repeated ones are ignored."""
        if number <= self._announcement:
            return
        self._announcement = number
        for _, head, alignment in self._members:
            head.limit_ms = limits.get(alignment.group, head.limit_ms)

    def _changed(self) -> tuple[dict[str, int | None], float]:
        """Returns the watermarks that differ from those reported, and when to report them."""
        changed: dict[str, int | None] = {}
        due_ms = self._reported_at_ms + self._interval_ms
        for subtask, head, _ in self._members:
            name, now_ms = str(subtask.id), None if subtask.finished else head.lowest_ms()
            before_ms = self._reported.get(name, MIN_WATERMARK)
            if now_ms == before_ms:
                continue
            changed[name] = now_ms
            due_ms = 0.0 if urgent(before_ms, now_ms) else due_ms
        return changed, due_ms
