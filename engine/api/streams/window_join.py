"""Window joins and co-groups: records of two streams that have the same key and are in the same window (A8).

left.join(right).where("id").equal_to("order").window(TumblingEventTimeWindows.of("1 min")).select(uid="paid")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import pyarrow as pa

from engine.api.functions import checked_is, checked_pair_function, no_method, shown
from engine.api.streams.joined import check_sides, function_schema, inputs, joined_columns, kept
from engine.api.streams.keyed_input import KeyedInput
from engine.api.window_assigners import EventTimeSessionWindows
from engine.api.windows import EventTimeWindows
from engine.core.errors import JobError
from engine.core.join_functions import CoGroupFunction, FlatJoinFunction, JoinFunction
from engine.graph.job_graph import OperatorSpec
from engine.runtime.functions import own
from engine.runtime.operators.base import Operator
from engine.runtime.operators.joins.outputs import ColumnOutput, GroupOutput, PairOutput
from engine.runtime.operators.joins.session import SessionCoGroup, SessionJoin
from engine.runtime.operators.joins.window import CoGroup, WindowJoin

if TYPE_CHECKING:  # for annotations only: see engine/api/streams/__init__.py
    from engine.api.streams.data import DataStream


@dataclass(frozen=True)
class _Windowed:
    """Two keyed streams whose records are divided into windows."""

    left: KeyedInput
    right: KeyedInput
    assigner: EventTimeWindows | EventTimeSessionWindows

    def _joining(self, output: Callable[[], ColumnOutput | PairOutput]) -> Callable[[], Operator]:
        """Returns what builds the operator of a join, in each subtask with an output of its own."""
        one, other = inputs(self.left, self.right)
        match self.assigner:
            case EventTimeWindows(spans):
                return lambda: WindowJoin(one, other, spans, output())
            case EventTimeSessionWindows(int(gap_ms)):
                return lambda: SessionJoin(one, other, gap_ms, output())
        raise AssertionError(self.assigner)

    def _grouping(self, output: Callable[[], GroupOutput]) -> Callable[[], Operator]:
        one, other = inputs(self.left, self.right)
        match self.assigner:
            case EventTimeWindows(spans):
                return lambda: CoGroup(one, other, spans, output())
            case EventTimeSessionWindows(int(gap_ms)):
                return lambda: SessionCoGroup(one, other, gap_ms, output())
        raise AssertionError(self.assigner)

    def _add(self, uid: str, kind: str, build: Callable[[], Operator], schema: pa.Schema, row_lane: bool) -> DataStream:
        state = {"windows": str(self.assigner), **kept(*inputs(self.left, self.right))}
        spec = OperatorSpec(uid, kind, build, row_lane=row_lane, state=state)
        return self.left.add_operator(spec, schema, self.right.hashed)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_method(self, name, _INSTEAD)


class WindowJoined(_Windowed):
    """A window join: each pair of records that have the same key and are in the same window."""

    def select(self, *columns: str, uid: str, suffix: str = "_right") -> DataStream:
        """Returns the joined columns: all of both streams, or those that are named; no Python runs per row.

        A key column that has the same name in both streams is there once; of other equal names, that of the right
        stream gets the suffix. `window_start` and `window_end` can be named, too.
        """
        found, schema = joined_columns(f"join {uid!r}", self.left, self.right, columns, suffix, windows=True)
        build = self._joining(lambda: ColumnOutput(found, schema))
        return self._add(uid, "window_join", build, schema, row_lane=False)

    def apply(
        self, function: JoinFunction | FlatJoinFunction, uid: str, schema: pa.Schema | str | None = None
    ) -> DataStream:
        """Calls the function with each pair; it returns one record of `schema`, a FlatJoinFunction any number."""
        what = f"join {uid!r}"
        checked_pair_function(f"{what}, apply", function, (JoinFunction, FlatJoinFunction), "join", "first, second")
        out = function_schema(what, schema)
        build = self._joining(lambda: PairOutput(own(function), out))
        return self._add(uid, "window_join", build, out, row_lane=True)


class WindowCoGrouped(_Windowed):
    """A co-group: all records of both streams by key and window, also of keys that only one of them has."""

    def apply(self, function: CoGroupFunction, uid: str, schema: pa.Schema | str | None = None) -> DataStream:
        """Calls the function with all records of each key and window; it returns any number of records of `schema`.

        With it outer joins are written: one of the two lists may be empty.
        """
        what = f"co_group {uid!r}"
        checked_pair_function(f"{what}, apply", function, CoGroupFunction, "co_group", "first, second")
        out = function_schema(what, schema)
        build = self._grouping(lambda: GroupOutput(own(function), out))
        return self._add(uid, "co_group", build, out, row_lane=True)


W = TypeVar("W", bound=_Windowed)


class _Step:
    """A step on the way to a join in windows: it says which call comes next."""

    _next = ""

    def __init__(self, what: str) -> None:
        self._what = what

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            said = f"the next call is {self._next}: write {self.__dict__.get('_what')}(other){_ORDER}"
            no_method(self, name, dict.fromkeys(_CALLS, said))


class JoinedStreams(_Step, Generic[W]):
    """Two streams to be joined in windows; `stream.join(other)` and `stream.co_group(other)` make one."""

    _next = "where(COLUMN)"

    def __init__(self, what: str, left: DataStream, right: DataStream, made: type[W]) -> None:
        super().__init__(what)
        self._left = left
        self._right = right
        self._made = made

    def where(self, *columns: str) -> JoinedWhere[W]:
        """Says by which columns of the first stream records belong together."""
        return JoinedWhere(self, _checked(f"{self._what}(...).where", columns))


class JoinedWhere(_Step, Generic[W]):
    _next = "equal_to(COLUMN)"

    def __init__(self, streams: JoinedStreams[W], columns: tuple[str, ...]) -> None:
        super().__init__(streams._what)
        self._streams = streams
        self._columns = columns

    def equal_to(self, *columns: str) -> JoinedKeys[W]:
        """Says which columns of the second stream must be equal to those of the first; null equals nothing."""
        theirs = _checked(f"{self._what}(...).where(...).equal_to", columns)
        left = self._streams._left.key_by(*self._columns)._keyed
        right = self._streams._right.key_by(*theirs)._keyed
        check_sides(self._what, left, right)
        return JoinedKeys(self._what, left, right, self._streams._made)


class JoinedKeys(_Step, Generic[W]):
    _next = "window(...)"

    def __init__(self, what: str, left: KeyedInput, right: KeyedInput, made: type[W]) -> None:
        super().__init__(what)
        self._left = left
        self._right = right
        self._made = made

    def window(self, assigner: EventTimeWindows | EventTimeSessionWindows) -> W:
        """Divides the records of both streams into windows of event time: tumbling, sliding, or sessions.

        The records of both streams share the sessions of a key: `EventTimeSessionWindows.with_gap("5 s")`.
        """
        if isinstance(assigner, EventTimeSessionWindows):
            _check_gap(self._what, assigner)
        else:
            examples = 'TumblingEventTimeWindows.of("10 s") or EventTimeSessionWindows.with_gap("5 s")'
            checked_is(f"{self._what}, window", assigner, EventTimeWindows, f"windows of event time such as {examples}")
        return self._made(self._left, self._right, assigner)


_ORDER = ".where(COLUMN).equal_to(COLUMN).window(...), and then select(uid=...) or apply(function, uid=...)"
_ENDS = ("sink_to", "to_spark_table", "print", "map", "flat_map", "filter", "key_by")
_CALLS = ("where", "equal_to", "window", "select", "apply", "process", "aggregate", *_ENDS)
_INSTEAD = {
    **{name: f"end the join with select(uid=...) or apply(function, uid=...), and then {name}(...)" for name in _ENDS},
    "process": "a join in windows has apply(function, uid=..., schema=...), as in Flink",
    "select": "a co-group has apply(CoGroupFunction(), uid=..., schema=...) only; join(...) has select",
    "aggregate": "aggregate the result behind the join, as in select(uid=...).key_by(...).window(...).aggregate(...)",
}


def _check_gap(what: str, assigner: EventTimeSessionWindows) -> None:
    if not isinstance(assigner.gap, int):
        raise JobError(
            f"{what}, window: sessions of a join have one gap, because a function can't tell the records of the two "
            'streams apart: write EventTimeSessionWindows.with_gap("5 s") in place of with_dynamic_gap(...)'
        )


def _checked(what: str, columns: tuple[Any, ...]) -> tuple[str, ...]:
    for column in columns:
        if not isinstance(column, str):
            raise JobError(f'{what} takes the names of columns, as in ("id"), not {shown(column)}')
    return columns
