"""Joins a stream with a table outside of the job: asks it for the rows of new keys, and keeps the answers.

A batch waits until its keys are known, and everything behind it waits, too: the subtask takes no input and no snapshot
meanwhile, so no state is kept, and order stays. Other subtasks of the slot go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from engine.core.connectors import calling
from engine.core.lookups import LookupTable
from engine.runtime.lookup_cache import Answer, LookupCache, unknown
from engine.runtime.operators.base import Operator, Output


class LookupJoin(Operator):
    """`outer`: keeps records without a match, with nulls."""

    def __init__(
        self,
        table: LookupTable,
        keys: Sequence[str],
        outer: bool,
        schema: pa.Schema,
        keep_ms: float,
        max_keys: int,
    ) -> None:
        self._table = table
        self._keys = list(keys)
        self._outer = outer
        self._schema = schema
        self._cache = LookupCache(keep_ms, max_keys)
        self._waiting: deque[pa.RecordBatch | int] = deque()  # an int is a watermark
        self._asked = 0  # questions so far
        self._open: int | None = None  # the question whose answer the first batch waits for
        self._answers: tuple[Answer, ...] | None = None  # all that the first batch needs
        self._failed: BaseException | None = None

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        self._waiting.append(batch)
        self._go_on(out)

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        self._waiting.append(timestamp_ms)
        self._go_on(out)

    def work(self, max_rows: int, out: Output) -> bool:
        if self._failed is not None:
            raise self._failed
        before = len(self._waiting)
        self._go_on(out)
        return len(self._waiting) < before

    @property
    def blocked(self) -> bool:
        return self._open is not None

    @property
    def firing(self) -> bool:
        return bool(self._waiting)

    def release(self, out: Output) -> None:
        """Waits for the table here: after a release there is no other time to emit what waits."""
        self._open = self._answers = self._failed = None  # a question that is open gets its answer too late
        while self._waiting:
            item = self._waiting.popleft()
            if isinstance(item, int):
                out.watermark(item)
                continue
            answers, missing = self._known(item)
            if missing.num_rows:
                answer = self._fetch(missing)
                self._cache.add(answer)
                answers = (*answers, answer)
            self._emit(item, answers, out)

    def _go_on(self, out: Output) -> None:
        """Emits what can be emitted, in its order, and asks for the keys of the first batch that has to wait."""
        while self._waiting and self._open is None:
            item = self._waiting[0]
            if isinstance(item, int):
                out.watermark(item)
            else:
                answers = self._answers
                if answers is None:
                    answers, missing = self._known(item)
                    if missing.num_rows:
                        self._ask(answers, missing)
                        return
                self._answers = None
                self._emit(item, answers, out)
            self._waiting.popleft()

    def _known(self, batch: pa.RecordBatch) -> tuple[tuple[Answer, ...], pa.RecordBatch]:
        answers = self._cache.answers(self.context.clock.now_ms())
        return answers, unknown(answers, [batch.column(key) for key in self._keys], self._keys)

    def _ask(self, answers: tuple[Answer, ...], missing: pa.RecordBatch) -> None:
        self._asked += 1
        self._open = question = self._asked

        def done(answer: Answer | None, error: BaseException | None) -> None:
            if self._open != question:
                return
            self._open = None
            self._failed = error
            if answer is not None:
                self._cache.add(answer)
                self._answers = (*answers, answer)

        self.context.offload.submit(f"{self.context.queue} {self.context.uid}", lambda: self._fetch(missing), done)

    def _fetch(self, keys: pa.RecordBatch) -> Answer:
        now_ms = self.context.clock.now_ms()  # before the table is read: the answer is not newer than that
        with calling(self.context.uid, self.context.subtask.index, self._table, f"fetch() of {keys.num_rows} keys"):
            found = self._table.fetch(keys)
        rows = found.select(self._table.schema.names).cast(self._table.schema)
        return Answer.of(pa.Table.from_batches([keys]), rows, now_ms)

    def _emit(self, batch: pa.RecordBatch, answers: Sequence[Answer], out: Output) -> None:
        keys = [batch.column(key) for key in self._keys]
        lefts, parts = [], []
        for answer in answers:
            left, right = answer.index.matches(keys, batch.num_rows)
            lefts.append(left)
            parts.append(answer.rows.take(pa.array(right)))
        left = np.concatenate([*lefts, np.zeros(0, dtype=np.int64)])
        found = pa.concat_tables([*parts, self._table.schema.empty_table()])
        if self._outer:
            missing = np.flatnonzero(np.bincount(left, minlength=batch.num_rows) == 0)
            left = np.concatenate([left, missing])
            nothing = [pa.nulls(len(missing), field.type) for field in self._table.schema]
            found = pa.concat_tables(
                [found, pa.table(nothing, schema=_nullable(self._table.schema))], promote_options="default"
            )
        if not len(left):
            return
        order = pa.array(np.argsort(left, kind="stable"))
        rows, found = batch.take(pa.array(left).take(order)), found.take(order).combine_chunks()
        arrays = [
            rows.column(field.name) if field.name in rows.schema.names else _one(found.column(field.name))
            for field in self._schema
        ]
        out.emit(pa.RecordBatch.from_arrays(arrays, schema=self._schema))


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _one(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)
