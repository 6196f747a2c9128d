"""`LookupCache` keeps what a lookup table has answered, also that it has no row of a key. By the column.

Invariant: an answer is used for at most `keep_ms`, and the cache holds at most `max_keys` keys, apart from one answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from engine.runtime.operators.static_join import JoinIndex

PARTS = 16
"""More parts are merged: each is searched for each batch."""


@dataclass(frozen=True)
class Answer:
    """The rows of some keys, as of one time."""

    keys: pa.Table
    rows: pa.Table
    at_ms: float
    known: JoinIndex
    index: JoinIndex

    @classmethod
    def of(cls, keys: pa.Table, rows: pa.Table, at_ms: float) -> Answer:
        names = keys.schema.names
        return cls(keys, rows, at_ms, JoinIndex(keys, names), JoinIndex(rows, names))

    @classmethod
    def both(cls, one: Answer, other: Answer) -> Answer:
        keys, rows = (pa.concat_tables(tables) for tables in ((one.keys, other.keys), (one.rows, other.rows)))
        return cls.of(keys, rows, min(one.at_ms, other.at_ms))


class LookupCache:
    def __init__(self, keep_ms: float, max_keys: int) -> None:
        self._keep_ms = keep_ms
        self._max_keys = max_keys
        self._answers: list[Answer] = []  # oldest first; no key is in two of them

    def answers(self, now_ms: float) -> tuple[Answer, ...]:
        """Returns what is known now. It stays as it is, whatever the cache forgets later."""
        self._answers = [answer for answer in self._answers if now_ms - answer.at_ms < self._keep_ms]
        return tuple(self._answers)

    def add(self, answer: Answer) -> None:
        """Adds the answer for keys that are not known. The oldest answers go."""
        self._answers.append(answer)
        while len(self._answers) > 1 and sum(one.keys.num_rows for one in self._answers) > self._max_keys:
            del self._answers[0]
        if len(self._answers) > PARTS:
            sizes = [one.keys.num_rows for one in self._answers]
            least = min(range(len(sizes) - 1), key=lambda at: sizes[at] + sizes[at + 1])
            self._answers[least : least + 2] = [Answer.both(self._answers[least], self._answers[least + 1])]


def unknown(answers: Sequence[Answer], keys: Sequence[pa.Array], names: Sequence[str]) -> pa.RecordBatch:
    """Returns the distinct keys of a batch for which there is no answer. A null equals nothing, so none has a null."""
    rows = len(keys[0])
    wanted = np.ones(rows, dtype=bool)
    for key in keys:
        wanted &= key.is_valid().to_numpy(zero_copy_only=False)
    for answer in answers:
        wanted[answer.known.matches(keys, rows)[0]] = False
    asked = pa.table(list(keys), names=list(names)).filter(pa.array(wanted))
    distinct = asked.group_by(list(names), use_threads=False).aggregate([]).combine_chunks()
    batches = distinct.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=distinct.schema)
