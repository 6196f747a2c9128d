"""Reads ahead: chunks of a split are read off the task thread, at most one besides the one being handed out.

A position is where a chunk begins, followed by how many of its records were handed out. A restored reader reads again
from the beginning of that chunk and drops that many records, even if chunks are cut differently by then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from engine.core.sources import MALFORMED, SourceContext, SplitReader

END = "end"
"""The position of a split that was read to its end; such a split is not opened again."""

Position = list[int]


@dataclass(frozen=True)
class BadRecord:
    """A record that could not be parsed. `before`: how many good rows of its chunk precede it."""

    before: int
    file: str
    line: int
    text: str
    reason: str


@dataclass(frozen=True)
class Chunk:
    """Records read at once. `at`: the position of the first. `after`: that of the next chunk; None: the split ends."""

    rows: pa.RecordBatch
    at: Position
    after: Position | None
    bad: Sequence[BadRecord] = ()


class ChunkReader(ABC):
    """Reads a split from a position on, off the task thread."""

    @abstractmethod
    def read(self) -> Chunk:
        """Returns the next chunk; not called again after the one that ends the split."""

    @abstractmethod
    def close(self) -> None: ...


@dataclass
class _Handing:
    """A chunk, and how many of its good rows and bad records were handed out."""

    chunk: Chunk
    rows: int = 0
    bad: int = 0

    def skip(self, records: int) -> int:
        """Skips this many records; returns how many of them lie beyond this chunk."""
        bad = self.chunk.bad
        self.bad = sum(record.before + index < records for index, record in enumerate(bad))
        self.rows = min(records - self.bad, self.chunk.rows.num_rows)
        return records - self.bad - self.rows

    def take(self, max_rows: int) -> tuple[pa.RecordBatch, Sequence[BadRecord]]:
        """Returns the next rows and the bad records among them."""
        rows = self.chunk.rows.slice(self.rows, max_rows)
        self.rows += rows.num_rows
        first = self.bad
        while self.bad < len(self.chunk.bad) and self.chunk.bad[self.bad].before <= self.rows:
            self.bad += 1
        return rows, self.chunk.bad[first : self.bad]

    @property
    def exhausted(self) -> bool:
        return self.rows == self.chunk.rows.num_rows and self.bad == len(self.chunk.bad)

    @property
    def position(self) -> Position:
        return [*self.chunk.at[:-1], self.chunk.at[-1] + self.rows + self.bad]


@dataclass
class ReadAhead(SplitReader):
    """Hands out one split. `open`: opens a reader at a position (None: the beginning), off the task thread."""

    open: Callable[[Position | None], ChunkReader]
    start: Position | str | None
    context: SourceContext
    _queue: deque[_Handing] = field(default_factory=deque)
    _bad: list[BadRecord] = field(default_factory=list)
    _reader: ChunkReader | None = None
    _reading: bool = False
    _closed: bool = False
    _error: BaseException | None = None

    def __post_init__(self) -> None:
        self._position = self.start
        self._ended = self.start == END
        self._skip = self.start[-1] if isinstance(self.start, list) else 0

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if self._error is not None:
            raise self._error
        rows = None
        if self._queue:
            handing = self._queue[0]
            rows, bad = handing.take(max_rows)
            self._bad += bad
            self._position = handing.position
            self._drop_exhausted()
        self._read_on()
        return rows

    def _drop_exhausted(self) -> None:
        while self._queue and self._queue[0].exhausted:
            after = self._queue.popleft().chunk.after
            # The records still to be skipped were handed out before this reader was restored.
            self._position = END if after is None else [*after[:-1], after[-1] + self._skip]

    def _read_on(self) -> None:
        if not self._reading and not self._ended and len(self._queue) < 2:
            self._reading = True
            self.context.offload.submit(self.context.queue, self._read, self._done)

    def _read(self) -> Chunk:
        """Runs off the task thread."""
        if self._reader is None:
            self._reader = self.open([*self.start[:-1], 0] if isinstance(self.start, list) else None)
        return self._reader.read()

    def _done(self, chunk: Chunk | None, error: BaseException | None) -> None:
        self._reading = False
        self._error = error
        if self._closed:
            self._release()
        elif chunk is not None:
            handing = _Handing(chunk)
            self._skip = handing.skip(self._skip)
            self._ended = chunk.after is None
            self._queue.append(handing)
            self._drop_exhausted()
            self._read_on()

    def malformed(self) -> pa.RecordBatch | None:
        if not self._bad:
            return None
        bad, self._bad = self._bad, []
        columns = [[getattr(record, name) for record in bad] for name in MALFORMED.schema.names]
        return pa.record_batch(columns, schema=MALFORMED.schema)

    @property
    def position(self) -> Position | str | None:
        return self._position

    @property
    def finished(self) -> bool:
        return self._ended and not self._queue

    def close(self) -> None:
        self._closed = True
        self._queue.clear()
        if not self._reading:
            self._release()

    def _release(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
