"""Aligned sources in the simulator: watches that no split is read further ahead of the slowest than its group allows.

The watch sees the splits of all slots of an attempt at once. The engine knows them by messages, which take their time:
while all splits only advance, that makes its limit too low and never too high, so the bound holds at every read. A
split that appears while others are read counts after a while only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from engine.api import WatermarkStrategy
from engine.protocol.signals import MIN_WATERMARK
from engine.runtime.source_head import SourceHead
from tests.simulation.world import Violation, World

GROUP, EVERY_MS = "all", 3
HEARD_MS = 8.0
"""So long after a split has appeared the others may not have heard of it, in a run without a storm."""
WAITED = "alignment: a split waits"


def aligned(strategy: WatermarkStrategy, drift_ms: int | None) -> WatermarkStrategy:
    return strategy if drift_ms is None else strategy.with_watermark_alignment(GROUP, drift_ms, EVERY_MS)


class DriftWatch:
    """`appears`: splits appear while the job runs."""

    def __init__(self, world: World, drift_ms: int, appears: bool) -> None:
        self._world = world
        self._drift_ms = drift_ms
        self._heard_ms = HEARD_MS if appears else 0.0
        self._heads: dict[Any, list[SourceHead]] = {}  # by attempt
        self._since_ms: dict[tuple[int, str], float] = {}  # when a split was first seen to be read, by head and name

    def opened(self, head: SourceHead, attempt: Any) -> None:
        self._heads.setdefault(attempt, []).append(head)

    def reads(self, head: SourceHead, split: Any) -> None:
        """Checks a split that is about to count its next rows."""
        now_ms, marks = self._world.now_ms, [_reached(head, split)]
        for other in self._heads[head._context.attempt]:
            for read in _reading(other):
                since_ms = self._since_ms.setdefault((id(other), read.name), now_ms)
                if now_ms - since_ms >= self._heard_ms:
                    marks.append(_reached(other, read))
        ahead_ms = marks[0] - min(marks)
        if ahead_ms > self._drift_ms:
            raise Violation("drift", f"split {split.name} is read {ahead_ms} ms ahead, of {self._drift_ms} allowed")

    def polls(self, head: SourceHead) -> None:
        if head.waits() is not None:
            self._world.hits.add(WAITED)


def _reading(head: SourceHead) -> list[Any]:
    """Returns the splits that a source subtask reads, without asking the engine's own rules for alignment."""
    unfinished = [split for split in head._splits if not split.reader.finished]
    return unfinished[: head._source.open_splits]


def _reached(head: SourceHead, split: Any) -> int:
    assert head._strategy is not None
    if split.generated is not None:
        reached_ms: int = split.generated.reached_ms
        return reached_ms
    return MIN_WATERMARK if split.seen_ms is None else split.seen_ms - head._strategy.bound_ms - 1


@contextmanager
def watched(world: World, drift_ms: int | None, appears: bool) -> Iterator[None]:
    if drift_ms is None:
        yield
        return
    watch = DriftWatch(world, drift_ms, appears)
    opened, stamp, poll = SourceHead.open, SourceHead._stamp, SourceHead._poll

    def open_(self: SourceHead, context: Any, *others: Any) -> None:
        opened(self, context, *others)
        if self.alignment is not None:
            watch.opened(self, context.attempt)

    def stamp_(self: SourceHead, split: Any, batch: Any) -> Any:
        if self.alignment is not None:
            watch.reads(self, split)
        return stamp(self, split, batch)

    def poll_(self: SourceHead, max_rows: int) -> Any:
        watch.polls(self)
        return poll(self, max_rows)

    with ExitStack() as stack:
        for name, replacement in (("open", open_), ("_stamp", stamp_), ("_poll", poll_)):
            stack.enter_context(patch.object(SourceHead, name, replacement))
        yield
