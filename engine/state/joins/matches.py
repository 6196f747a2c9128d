"""`Matches` and `Pairs`: which rows of two sides belong together, handed out in parts of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from engine.state.joins.rows import Ints


@dataclass(frozen=True)
class Pairs:
    """Some pairs: row `left_rows[i]` of `left` belongs to row `right_rows[i]` of `right`."""

    left: pa.RecordBatch
    left_rows: pa.Array
    right: pa.RecordBatch
    right_rows: pa.Array

    def __len__(self) -> int:
        return len(self.left_rows)


@dataclass(frozen=True)
class Matches:
    """Each of `rows` of one side matches `counts` rows of the other, which follow each other from `starts` on."""

    rows: Ints
    starts: Ints
    counts: Ints

    def parts(self, most: Callable[[], int]) -> Iterator[tuple[Ints, Ints]]:
        """Yields the pairs of row numbers, at most `most()` at a time: a few rows may make very many pairs."""
        ends = np.cumsum(self.counts)
        done, total = 0, int(ends[-1]) if len(ends) else 0
        while done < total:
            numbers = np.arange(done, min(done + most(), total))
            at = np.searchsorted(ends, numbers, side="right")
            yield self.rows[at], self.starts[at] + numbers - (ends[at] - self.counts[at])
            done += len(numbers)
