"""`WindowClocks`: which windows of each key group have fired, and which of these are forgotten (B7).

The first clock is the watermark. The second is behind it by the allowed lateness: a window is forgotten when it has
passed the window's end - 1 ms. Both are part of the snapshot, so no change of the lateness makes a window count again
of which only a part is known.
"""

from __future__ import annotations

from typing import Any

from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.runtime.operators.base import WATERMARKS, OperatorContext, RestoredState
from engine.state.group_clock import GroupClock

FORGOTTEN = "forgotten"
"""The inline value of the second clock. Without it windows are forgotten up to `WATERMARKS`."""


class WindowClocks:
    def __init__(self, context: OperatorContext, restored: RestoredState | None, lateness_ms: int) -> None:
        self._lateness_ms = lateness_ms
        self.fired = self.forgotten = context.group_clock(restored)
        if lateness_ms:
            saved = [inline.get(FORGOTTEN, inline[WATERMARKS]) for inline in (restored.inline if restored else [])]
            self.forgotten = GroupClock(context.key_groups, context.max_parallelism, saved)

    @property
    def uneven(self) -> bool:
        """True while key groups differ, after a restore."""
        return self.fired.uneven or self.forgotten.uneven

    def kept_longer(self, restored: RestoredState) -> bool:
        """Returns True if an earlier version may have kept windows that are forgotten now, for its longer lateness."""
        return any(FORGOTTEN in inline for inline in restored.inline)

    def forget(self) -> None:
        """Moves the second clock behind the first, after windows have fired."""
        now_ms = self.fired.now_ms
        self.forgotten.advance(now_ms if now_ms == MAX_WATERMARK else max(now_ms - self._lateness_ms, MIN_WATERMARK))

    def snapshot(self) -> dict[str, Any]:
        inline = {WATERMARKS: self.fired.snapshot()}
        if self._lateness_ms:
            inline[FORGOTTEN] = self.forgotten.snapshot()
        return inline
