"""The head of a source subtask: its splits in turn, a position and a watermark per split (B1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from engine.connectors.base import Source, SplitReader
from engine.protocol import ledger
from engine.protocol.signals import MIN_WATERMARK
from engine.runtime.errors import SchemaMismatch
from engine.runtime.operators.base import OperatorContext, OperatorSnapshot, RestoredState
from engine.runtime.watermarks import WatermarkStrategy, event_times, with_event_times


class _Split:
    def __init__(self, name: str, reader: SplitReader, seen_ms: int | None) -> None:
        self.name = name
        self.reader = reader
        self.seen_ms = seen_ms


class SourceHead:
    def __init__(self, source: Source, schema: pa.Schema, strategy: WatermarkStrategy | None) -> None:
        self._source = source
        self._schema = schema
        self._strategy = strategy
        self._splits: list[_Split] = []
        self._next = 0
        self._watermark = MIN_WATERMARK

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        held: dict[str, dict[str, Any]] = {}
        for inline in restored.inline if restored else []:
            held.update(inline["splits"])
        for name in assigned(self._source.splits(), context.subtask.index, context.parallelism):
            state = held.get(name, {})
            reader = self._source.reader(name, state.get("position"), context.clock, self._schema)
            self._splits.append(_Split(name, reader, state.get("seen_ms")))

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """Rows of the next split that has some."""
        for step in range(len(self._splits)):
            split = self._splits[(self._next + step) % len(self._splits)]
            if split.reader.finished:
                continue
            batch = split.reader.poll(max_rows)
            if batch is None or not batch.num_rows:
                continue
            self._next = (self._next + step + 1) % len(self._splits)
            return self._stamp(split, batch)
        return None

    def _stamp(self, split: _Split, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema != self._schema:
            raise SchemaMismatch(
                f"source {self._context.uid!r}, split {split.name!r} gave records of ({_plain(batch.schema)}), "
                f"but the job declares ({_plain(self._schema)})"
            )
        self._context.count(ledger.source_rows(self._context.uid), batch.num_rows)
        if self._strategy is None:
            return batch
        times = event_times(batch, self._strategy.column, self._context.uid)
        highest = int(times.max())
        split.seen_ms = highest if split.seen_ms is None else max(split.seen_ms, highest)
        return with_event_times(batch, times)

    def watermark(self) -> int | None:
        """The lowest of its splits' watermarks, if it advanced."""
        if self._strategy is None:
            return None
        open_splits = [split for split in self._splits if not split.reader.finished]
        if not open_splits or any(split.seen_ms is None for split in open_splits):
            return None
        lowest = min(self._strategy.watermark(split.seen_ms) for split in open_splits if split.seen_ms is not None)
        if lowest <= self._watermark:
            return None
        self._watermark = lowest
        return lowest

    @property
    def finished(self) -> bool:
        return all(split.reader.finished for split in self._splits)

    @property
    def wakeup_ms(self) -> float | None:
        """When some split is worth polling; None: now."""
        times = [split.reader.wakeup_ms for split in self._splits if not split.reader.finished]
        return None if any(time is None for time in times) else min((t for t in times if t is not None), default=None)

    def snapshot(self) -> OperatorSnapshot:
        splits = {s.name: {"position": s.reader.position, "seen_ms": s.seen_ms} for s in self._splits}
        return OperatorSnapshot(inline={"splits": splits})

    def close(self) -> None:
        for split in self._splits:
            split.reader.close()


def assigned(splits: Sequence[str], subtask: int, parallelism: int) -> Sequence[str]:
    return splits[subtask::parallelism]


def _plain(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
