"""`Spans`: the arithmetic of windows that overlap. Which panes they share, and when a pane is needed no longer.

Windows of one size start every `slide_ms`, so a record may be in several of them. Each record is kept once, in a pane:
the longest stretch of time that no window divides. A window is the union of its panes. Tumbling windows are the case
in which each window is one pane.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Spans:
    """Windows [start, start + size) with start = offset + k * slide, for every whole k."""

    size_ms: int
    slide_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        assert self.size_ms > 0 and self.slide_ms > 0

    @property
    def pane_ms(self) -> int:
        return math.gcd(self.size_ms, self.slide_ms)

    @property
    def has_gaps(self) -> bool:
        """True if some times are in no window."""
        return self.slide_ms > self.size_ms

    def in_a_window(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return np.mod(times - self.offset_ms, self.slide_ms) < self.size_ms

    def pane(self, time_ms: int) -> int:
        """Returns the start of the pane of this time."""
        return time_ms - (time_ms - self.offset_ms) % self.pane_ms

    def panes(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        # With % instead of // it takes three times as long: numpy has a SIMD kernel for // only.
        return (times - self.offset_ms) // self.pane_ms * self.pane_ms + self.offset_ms

    def last_window(self, pane_ms: int) -> int:
        """Returns the start of the last window that has this pane."""
        return pane_ms - (pane_ms - self.offset_ms) % self.slide_ms

    def last_windows(self, panes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return panes - np.mod(panes - self.offset_ms, self.slide_ms)

    def windows(self, pane_ms: int) -> range:
        """Returns the starts of the windows that have this pane."""
        return range(self.first_window(pane_ms), self.last_window(pane_ms) + 1, self.slide_ms)

    def first_window(self, pane_ms: int) -> int:
        """Returns the start of the first window that has this pane."""
        return self._next_start(pane_ms + self.pane_ms - self.size_ms)

    @property
    def overlap(self) -> bool:
        """True if some times are in more than one window."""
        return self.slide_ms < self.size_ms

    def stretch(self, time_ms: int) -> int:
        """Returns the start of the stretch of this time: the latest time until then at which a window starts or ends.

        No window starts or ends inside a stretch, so it may be several panes. There are at most two for each slide,
        also if the size is no multiple of it.
        """
        since = time_ms - self.offset_ms
        return time_ms - min(since % self.slide_ms, (since - self.size_ms) % self.slide_ms)

    def first_end(self, time_ms: int) -> int:
        """Returns the end of the first window that has this time, if windows overlap."""
        return time_ms + self.slide_ms - (time_ms - self.offset_ms - self.size_ms) % self.slide_ms

    def last_stretches(self, window_ms: int) -> list[int]:
        """Returns the starts of the stretches of this window that no later one has, if windows overlap."""
        rest_ms = self.size_ms % self.slide_ms
        return [window_ms, window_ms + rest_ms] if rest_ms else [window_ms]

    def due_ms(self, window_ms: int) -> int:
        """Returns the watermark at which the window that starts at this time fires (B4)."""
        return window_ms + self.size_ms - 1

    def first_open(self, watermark_ms: int) -> int:
        """Returns the start of the first window that has not fired at this watermark."""
        return self._next_start(watermark_ms - self.size_ms + 2)

    def _next_start(self, time_ms: int) -> int:
        """Returns the first start of a window that is not before this time."""
        return time_ms + (self.offset_ms - time_ms) % self.slide_ms
