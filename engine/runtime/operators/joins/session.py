"""Joins and co-groups of two streams by key and event-time session: records of both share the sessions of a key.

Rows of both sides are kept until the watermark reaches the end of their session - 1 ms, which later rows of either side
may have moved. A row that is late by itself counts if it joins a session that is still open, as in other sessions.
Whether a row is late is decided per key group, so a session that was published stays closed also after a restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from engine.protocol import ledger
from engine.protocol.signals import MIN_WATERMARK
from engine.runtime.operators.base import Output
from engine.runtime.operators.joins.base import JoinOperator, Step
from engine.runtime.operators.joins.outputs import ColumnOutput, Found, FunctionOutput, GroupOutput, PairOutput
from engine.state.joins.matches import Pairs
from engine.state.joins.rows import Ints, JoinInput
from engine.state.joins.sessions import Clock, SessionRows, Sessions
from engine.state.joins.windows import Groups, by_codes, paired
from engine.state.key_hash import Hashes


class SessionedJoin(JoinOperator):
    """Keeps the rows, and finds the sessions that are over."""

    def __init__(self, left: JoinInput, right: JoinInput, gap_ms: int, output: ColumnOutput | FunctionOutput) -> None:
        super().__init__(left, right, output)
        self._both = SessionRows(left, right, gap_ms)
        self._alone: tuple[SessionRows, ...] = ()
        """The rows of each side with a null in their key, which equals nothing; without it they are left out."""

    def _restore(self, side: int, rows: pa.RecordBatch) -> None:
        # No row of a snapshot is late. One that is by itself belongs to a session that others keep open, and these may
        # be restored after it.
        self._keep(side, rows, lambda hashes: MIN_WATERMARK)

    def _add(self, side: int, rows: pa.RecordBatch, out: Output) -> None:
        late = self._keep(side, rows, self._clock_of)
        if late:
            self.context.count(ledger.late_rows(self.context.uid), late)

    def _keep(self, side: int, rows: pa.RecordBatch, clock: Clock) -> int:
        """Keeps the rows that are not late, and returns the number of those that are."""
        complete, late = self._inputs[side].complete(rows), 0
        for wanted, kept in ((complete, self._both), *((~complete, of) for of in self._alone[side : side + 1])):
            if wanted.any():
                late += int(kept.add(side, rows if wanted.all() else rows.filter(pa.array(wanted)), clock).sum())
        return late

    def _clock_of(self, hashes: Hashes) -> Ints | int:
        return self._clock.of_rows(hashes) if self._clock.uneven else self._clock.now_ms

    def _due(self, before_ms: int) -> Iterator[Step]:
        for rows in (self._both, *self._alone):
            sessions = rows.due(self._clock.now_ms)
            if sessions is not None:
                yield from self._results(sessions)

    def _results(self, sessions: Sessions) -> Iterator[Step]:
        raise NotImplementedError

    def _frozen(self, side: int) -> Callable[[], pa.Table]:
        frozen = [rows.freeze(side) for rows in (self._both, *self._alone)]
        return lambda: pa.concat_tables([table() for table in frozen])


class SessionJoin(SessionedJoin):
    """Hands out each pair of rows that have the same key and are in the same session."""

    def __init__(self, left: JoinInput, right: JoinInput, gap_ms: int, output: ColumnOutput | PairOutput) -> None:
        super().__init__(left, right, gap_ms, output)
        self._emitting = output

    def _results(self, sessions: Sessions) -> Iterator[Step]:
        if sessions.left.num_rows and sessions.right.num_rows:
            ours, theirs = pa.array(sessions.left_of), pa.array(sessions.right_of)
            pairs = paired(sessions.left, [ours], sessions.right, [theirs])
            yield from (self._emitted(some, sessions) for some in pairs(lambda: self._most))

    def _emitted(self, pairs: Pairs, sessions: Sessions) -> Step:
        of = sessions.left_of[pairs.left_rows.to_numpy()]
        starts, ends = sessions.starts[of], sessions.ends[of]
        found = Found(pairs, pa.array(ends - 1), (pa.array(starts), pa.array(ends)))
        return Step(len(pairs), lambda out: self._emitting.emit(found, out))


class SessionCoGroup(SessionedJoin):
    """Hands out all rows of both sides by key and session. Rows with a null in their key are groups of one side."""

    def __init__(self, left: JoinInput, right: JoinInput, gap_ms: int, output: GroupOutput) -> None:
        super().__init__(left, right, gap_ms, output)
        self._alone = (SessionRows(left, right, gap_ms), SessionRows(left, right, gap_ms))
        self._emitting = output

    def _results(self, sessions: Sessions) -> Iterator[Step]:
        groups = by_codes(sessions.left, sessions.left_of, sessions.right, sessions.right_of, lambda: self._most)
        return (self._emitted(some, sessions) for some in groups)

    def _emitted(self, groups: Groups, sessions: Sessions) -> Step:
        rows = groups.left.num_rows + groups.right.num_rows
        times_ms: list[int] = (sessions.ends[groups.codes] - 1).tolist()
        return Step(rows, lambda out: self._emitting.emit(groups, times_ms, out))
