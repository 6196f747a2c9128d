"""A folder that fills while the job runs: the real `Watched`, with a listing that grows with virtual time.

Unlike a real watched folder it is bounded: each subtask knows how many files it will get.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.connectors.files.discovery import Watched, owner
from engine.connectors.files.listing import FileSplit
from engine.connectors.generator import Columns, GeneratorSource
from engine.core.sources import Discovery, Source, SourceContext, SplitReader

FILES = 5
EVERY_MS = 9
LOOK_MS = 4


class Folder(Source):
    """Of n files, file f holds the records f, f + n, f + 2 * n, …; it appears after `turns[f] * every_ms`."""

    open_splits = 2

    def __init__(
        self,
        make: Callable[[np.ndarray], Columns],
        rows: int,
        turns: Sequence[int] = range(FILES),
        every_ms: int = EVERY_MS,
    ) -> None:
        self._records = GeneratorSource(make, splits=len(turns), rows=rows)
        self._put_ms = [turn * every_ms for turn in turns]

    def discovery(self, context: SourceContext, known: Sequence[str]) -> Discovery:
        return _Filling(context, known, self._put_ms)

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        return self._records.reader(file_of(split), position, context)


class _Filling(Watched):
    def __init__(self, context: SourceContext, known: Sequence[str], put_ms: Sequence[int]) -> None:
        self._own = sum(owner(str(file), context.parallelism) == context.subtask for file in range(len(put_ms)))

        def put_until_now() -> list[FileSplit]:
            now_ms = context.clock.now_ms()
            return [FileSplit(str(file), 1, put) for file, put in enumerate(put_ms) if put <= now_ms]

        super().__init__(context, known, put_until_now, LOOK_MS)

    @property
    def finished(self) -> bool:
        return self.ready and len(self._paths) == self._own and not self._found


def file_of(split: str) -> str:
    return FileSplit.of(split).path
