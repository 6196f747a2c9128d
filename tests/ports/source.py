"""The source of ports whose originals read slowly, or a file at a time: what they compute depends on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from engine.core.durations import Duration, to_ms
from engine.core.ports import Clock
from engine.core.sources import FixedSource, SourceContext, SplitReader


class OneByOne(FixedSource):
    """Gives one record at a time, so that a watermark is behind each. The first one waits for `after`."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], after: Duration = 0) -> None:
        self._rows = list(rows)
        self._after_ms = to_ms(after, "after")

    def splits(self) -> Sequence[str]:
        return ["0"]

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        begins_ms = context.clock.now_ms() + (0 if position else self._after_ms)
        return _Reader(self._rows, position or 0, begins_ms, context.clock, context.schema)


class _Reader(SplitReader):
    def __init__(
        self, rows: list[Mapping[str, Any]], position: int, begins_ms: float, clock: Clock, schema: pa.Schema
    ) -> None:
        self._rows = rows
        self._position = position
        self._begins_ms = begins_ms
        self._clock = clock
        self._schema = schema

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if self.finished or self._clock.now_ms() < self._begins_ms:
            return None
        self._position += 1
        return pa.RecordBatch.from_pylist([dict(self._rows[self._position - 1])], schema=self._schema)

    @property
    def position(self) -> int:
        return self._position

    @property
    def finished(self) -> bool:
        return self._position == len(self._rows)

    @property
    def wakeup_ms(self) -> float | None:
        return self._begins_ms if self._clock.now_ms() < self._begins_ms else None
