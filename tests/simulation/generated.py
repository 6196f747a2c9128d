"""Watermark generators in the simulator: they make the watermarks of a bound, and keep how many records they have seen.

So a job with them must do what it does without them, and what a snapshot holds of a generator must be what it had seen
at the position of its split: neither more nor less, whatever has crashed before.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engine.api import WatermarkGenerator, WatermarkOutput, WatermarkStrategy
from engine.core.functions import Row
from tests.simulation.world import Violation

RECORDS, BATCHES = "records", "batches"


class Counting(WatermarkGenerator):
    def __init__(self, bound_ms: int) -> None:
        self._bound_ms = bound_ms
        self._seen = 0

    def snapshot_state(self) -> Any:
        return {"seen": self._seen}

    def restore_state(self, state: Any) -> None:
        self._seen = state["seen"]

    def _note(self, rows: int, highest_ms: int, output: WatermarkOutput) -> None:
        self._seen += rows
        output.emit_watermark(highest_ms - self._bound_ms - 1)


class OfRecords(Counting):
    def on_event(self, event: Row, event_timestamp: int, output: WatermarkOutput) -> None:
        self._note(1, event_timestamp, output)


class OfBatches(Counting):
    def on_batch(self, batch: pa.RecordBatch, timestamps: pa.Array, output: WatermarkOutput) -> None:
        self._note(batch.num_rows, pc.max(timestamps).as_py(), output)


def strategy_of(generated: str, bound_ms: int) -> WatermarkStrategy:
    """`generated`: what the generator is called with; empty: there is none."""
    if not generated:
        return WatermarkStrategy.for_bounded_out_of_orderness(bound_ms)
    kind = OfRecords if generated == RECORDS else OfBatches
    return WatermarkStrategy.for_generator(lambda context: kind(bound_ms))


def check(epoch: int, uid: str, inline: dict[str, Any]) -> dict[str, int]:
    """Checks what a snapshot holds of the generators of a source; returns the watermark of each split."""
    for split, state in inline.get("generators", {}).items():
        position = inline["splits"][split]["position"]
        if state["seen"] != position:
            raise Violation(
                "generators",
                f"epoch {epoch}: split {split} of {uid} is at {position}, its generator has seen {state['seen']}",
            )
    return {f"{uid}/{split} (generated)": mark for split, mark in inline.get("generated", {}).items()}
