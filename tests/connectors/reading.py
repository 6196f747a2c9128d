"""Reads the splits of a file source as a subtask does, with offloaded work done between two polls."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from engine.core.sources import Source, SplitReader
from tests.fakes import FakeOffload, source_context

POLLS = 10_000


class Reading:
    def __init__(self, source: Source, schema: pa.Schema) -> None:
        self.source = source
        self.malformed: list[dict[str, Any]] = []
        self.offload = FakeOffload()
        self.context = source_context(schema, offload=self.offload)
        discovery = source.discovery(self.context, [])
        assert discovery.poll() == ()
        self.offload.run()
        self.splits = list(discovery.poll())

    def all(self, split: str, position: Any = None, max_rows: int = 1000) -> list[dict[str, Any]]:
        reader = self.source.reader(split, position, self.context)
        rows = self.some(reader, None, max_rows)
        reader.close()
        return rows

    def some(self, reader: SplitReader, at_least: int | None, max_rows: int) -> list[dict[str, Any]]:
        """Until it has so many rows, or is finished."""
        rows: list[dict[str, Any]] = []
        for _ in range(POLLS):
            if reader.finished or (at_least is not None and len(rows) >= at_least):
                return rows
            batch = reader.poll(max_rows)
            rows += batch.to_pylist() if batch is not None else []
            bad = reader.malformed()
            self.malformed += bad.to_pylist() if bad is not None else []
            self.offload.run()
        raise AssertionError("the reader does not end")

    def in_pieces(self, split: str, cuts: list[int]) -> list[dict[str, Any]]:
        """So many rows from each of a row of readers, each going on from the position of the one before."""
        rows: list[dict[str, Any]] = []
        position = None
        for cut in cuts:
            reader = self.source.reader(split, position, self.context)
            rows += self.some(reader, cut, cut)
            position = reader.position
            reader.close()
        return rows + self.all(split, position)
