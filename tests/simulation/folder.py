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
    """File f holds the records f, f + FILES, f + 2 * FILES, …"""

    open_splits = 2

    def __init__(self, make: Callable[[np.ndarray], Columns], rows: int) -> None:
        self._records = GeneratorSource(make, splits=FILES, rows=rows)

    def discovery(self, context: SourceContext, known: Sequence[str]) -> Discovery:
        return _Filling(context, known)

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        return self._records.reader(file_of(split), position, context)


class _Filling(Watched):
    def __init__(self, context: SourceContext, known: Sequence[str]) -> None:
        self._own = sum(owner(str(file), context.parallelism) == context.subtask for file in range(FILES))
        super().__init__(context, known, lambda: _put_until(context.clock.now_ms()), LOOK_MS)

    @property
    def finished(self) -> bool:
        return self.ready and len(self._paths) == self._own and not self._found


def _put_until(now_ms: float) -> list[FileSplit]:
    return [FileSplit(str(file), 1, file) for file in range(FILES) if file * EVERY_MS <= now_ms]


def file_of(split: str) -> str:
    return FileSplit.of(split).path
