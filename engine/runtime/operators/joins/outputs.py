"""What a join does with the pairs that it finds: emits them as columns, or calls a function with each.

An output is part of its join's operator. It is an operator only for its lifecycle and its own state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from engine.core.authors import defined_at
from engine.core.errors import UserFunctionError
from engine.core.functions import Row
from engine.core.join_functions import CoGroupFunction, FlatJoinFunction, JoinContext, JoinFunction, ProcessJoinFunction
from engine.runtime.operators.base import EVENT_TIME, Operator, Output
from engine.runtime.operators.records import records_of, short
from engine.runtime.operators.rows import RowOperator, several_of
from engine.state.joins.matches import Pairs
from engine.state.joins.windows import Groups

WINDOW_START, WINDOW_END = "window_start", "window_end"
_STAMP, _STAMP_MS = pa.timestamp("us", tz="UTC"), pa.timestamp("ms", tz="UTC")


@dataclass(frozen=True)
class Found:
    """Pairs with the event times of their results, and the window in which they were found, if there is one.

    `window_ms`: the start and the end of the window, of all pairs or of each.
    """

    pairs: Pairs
    times: pa.Array
    window_ms: tuple[int, int] | tuple[pa.Array, pa.Array] | None = None


@dataclass(frozen=True)
class JoinedColumn:
    """A column of the result: `name` of one side. `side` is 0, 1, or None for a bound of the window."""

    side: int | None
    name: str


class ColumnOutput(Operator):
    """Emits pairs as columns, without Python per row."""

    at_once = 65_536
    """The most pairs of one batch."""

    def __init__(self, columns: Sequence[JoinedColumn], schema: pa.Schema) -> None:
        """`columns`: those of the schema but for the event time, which is its last."""
        self._columns = list(columns)
        self._schema = schema
        self._made: list[pa.RecordBatch] = []

    def emit(self, found: Found, out: Output) -> None:
        pairs = found.pairs
        if not len(pairs):
            return
        sides = ((pairs.left, pairs.left_rows), (pairs.right, pairs.right_rows))
        arrays = []
        for column in self._columns:
            if column.side is None:
                assert found.window_ms is not None
                bound_ms = found.window_ms[column.name == WINDOW_END]
                each = (
                    bound_ms
                    if isinstance(bound_ms, pa.Array)
                    else pa.repeat(pa.scalar(bound_ms, pa.int64()), len(pairs))
                )
                arrays.append(each.cast(_STAMP_MS).cast(_STAMP))
            else:
                rows, places = sides[column.side]
                arrays.append(rows.column(column.name).take(places))
        self._made.append(pa.RecordBatch.from_arrays([*arrays, found.times], schema=self._schema))

    def flush(self, out: Output) -> None:
        """Emits what was made as one batch: pairs are found in several runs, a few in each."""
        made, self._made = self._made, []
        if made:
            out.emit(pa.concat_batches(made) if len(made) > 1 else made[0])


class FunctionOutput(RowOperator):
    """Calls a function of the job, and emits what it returns."""

    at_once = 1024
    """The most pairs that are handed to the function before the subtask looks at anything else."""

    def flush(self, out: Output) -> None:
        """Does nothing: results are emitted at once."""

    def _called(self, what: str, call: Callable[[Any, Any], Iterable[Any]], left: Any, right: Any) -> list[Any]:
        """Returns the results of one call; `what` it was called with is named if it fails."""
        try:
            results = list(several_of(call(left, right) or ()))
        except Exception as error:
            where, given = f"{what} {self._records + 1} of this attempt", short((left, right))
            failed = UserFunctionError(self.context.uid, self.context.subtask.index, where, error, given)
            if not failed.raised.line:  # it returned something wrong
                failed.raised = msgspec.structs.replace(failed.raised, line=self._line)
            raise failed from error
        self._records += 1
        return results

    def _emit_all(self, rows: list[Any], times: list[int], out: Output) -> None:
        if rows:
            self._emit(self._batch(rows, pa.array(times, pa.int64())), out)


class PairOutput(FunctionOutput):
    def __init__(self, function: ProcessJoinFunction | JoinFunction | FlatJoinFunction, schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self.emits_aside = isinstance(function, ProcessJoinFunction)
        self._function = function
        self._context = JoinContext()
        self._line = defined_at(
            function.process_element if isinstance(function, ProcessJoinFunction) else function.join
        )

    def emit(self, found: Found, out: Output) -> None:
        left = found.pairs.left.take(found.pairs.left_rows)
        right = found.pairs.right.take(found.pairs.right_rows)
        pairs = zip(records_of(left), records_of(right), strict=True)
        stamps = zip(left.column(EVENT_TIME).to_pylist(), right.column(EVENT_TIME).to_pylist(), strict=True)
        rows: list[Any] = []
        times: list[int] = []
        for (mine, theirs), stamp, time in zip(pairs, stamps, found.times.to_pylist(), strict=True):
            self._context.left_ms, self._context.right_ms = stamp
            rows += self._called("pair", self._call, mine, theirs)
            times += [time] * (len(rows) - len(times))
        self._emit_all(rows, times, out)

    def _call(self, left: Row, right: Row) -> Iterable[Any]:
        match self._function:
            case ProcessJoinFunction() as function:
                return function.process_element(left, right, self._context)
            case JoinFunction() as function:
                result = function.join(left, right)
                if result is None:
                    raise TypeError("it returned None: return one record; a FlatJoinFunction may return none")
                return (result,)
            case function:
                return function.join(left, right)


class GroupOutput(FunctionOutput):
    def __init__(self, function: CoGroupFunction, schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self._function = function
        self._line = defined_at(function.co_group)

    def emit(self, groups: Groups, times_ms: Sequence[int], out: Output) -> None:
        """`times_ms`: the event time of the results of each group."""
        first, second = records_of(groups.left), records_of(groups.right)
        rows: list[Any] = []
        times: list[int] = []
        for place, time_ms in enumerate(times_ms):
            mine = first[groups.left_bounds[place] : groups.left_bounds[place + 1]]
            theirs = second[groups.right_bounds[place] : groups.right_bounds[place + 1]]
            rows += self._called("group", self._function.co_group, mine, theirs)
            times += [time_ms] * (len(rows) - len(times))
        self._emit_all(rows, times, out)
