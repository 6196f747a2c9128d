"""Watermark generators that a job's author writes: they say how far event time has come in one split of a source (B1).

The names are those of Flink. `engine/runtime/generated_watermarks.py` calls them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from engine.core.functions import Row


class WatermarkOutput(ABC):
    """Takes the watermarks of a generator."""

    @abstractmethod
    def emit_watermark(self, timestamp_ms: int) -> None:
        """Says that no record at or before this time follows, in milliseconds since 1970.

        A watermark that is not after the last one is ignored, since event time never goes back. A split that was idle
        is active again.
        """

    @abstractmethod
    def mark_idle(self) -> None:
        """Says that the split holds event time back no longer, until `mark_active` or the next watermark."""

    @abstractmethod
    def mark_active(self) -> None:
        """Ends what `mark_idle` has begun."""


class WatermarkGeneratorContext(ABC):
    """Tells a generator for which split it is made, and what time it is."""

    split: str
    """The name of the split, such as a file; empty behind another operator, where there are none."""
    subtask_index: int
    """The number of the subtask that reads it, from 0."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Returns the time by the clock, in milliseconds since 1970. In a test it is the time of the run."""


class WatermarkGenerator:
    """Makes the watermarks of one split. Define `on_event` or `on_batch`, and `on_periodic_emit`; or one of the two.

    Watermarks leave the source behind the batch of records for which they were emitted, never within it.

        class TwoSecondsBehind(WatermarkGenerator):
            def __init__(self):
                self.highest = None

            def on_event(self, event, event_timestamp, output):
                self.highest = max(event_timestamp, self.highest or event_timestamp)

            def on_periodic_emit(self, output):
                if self.highest is not None:
                    output.emit_watermark(self.highest - 2000)
    """

    def on_event(self, event: Row, event_timestamp: int, output: WatermarkOutput) -> None:
        """Called with each record that has an event time. Python runs per record: `on_batch` is much faster."""

    def on_batch(self, batch: pa.RecordBatch, timestamps: pa.Array, output: WatermarkOutput) -> None:
        """Called with each batch and the event times of its records, in place of `on_event` if both are defined.

        Both have the records that have an event time, of which there is at least one.
        """

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Called after each batch, and whenever the split has given none for the strategy's `emit_interval`."""

    def snapshot_state(self) -> Any:
        """Returns what a snapshot has to keep of the generator: numbers, texts, lists and dicts; None: nothing.

        The watermark itself is kept in any case. Without this, a restored generator begins anew.
        """
        return None

    def restore_state(self, state: Any) -> None:
        """Called before all others after a restore, with what `snapshot_state` returned for this split."""


MakesGenerator: TypeAlias = Callable[[WatermarkGeneratorContext], WatermarkGenerator]
