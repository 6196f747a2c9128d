"""Interval joins: rows of two keyed streams whose event times are not too far apart (A8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from engine.api.functions import checked_is, checked_pair_function, no_method
from engine.api.streams.joined import check_sides, function_schema, inputs, joined_columns, kept
from engine.api.streams.keyed_input import KeyedInput
from engine.core.durations import Duration, to_signed_ms
from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME, described
from engine.core.join_functions import ProcessJoinFunction
from engine.core.tags import OutputTag
from engine.graph.job_graph import OperatorSpec
from engine.runtime.functions import own
from engine.runtime.operators.joins.interval import IntervalJoin as IntervalJoinOperator
from engine.runtime.operators.joins.outputs import ColumnOutput, PairOutput
from engine.state.joins.interval import Bounds

if TYPE_CHECKING:  # for annotations only: see engine/api/streams/__init__.py
    from engine.api.streams.data import DataStream


class IntervalJoin:
    """Two keyed streams; `keyed.interval_join(other)` makes one. `between` says how far apart rows may be."""

    def __init__(self, left: KeyedInput, right: KeyedInput) -> None:
        check_sides("interval_join", left, right)
        self._left = left
        self._right = right

    def between(self, lower: Duration, upper: Duration) -> IntervalJoined:
        """Joins rows of which the right one is from `lower` to `upper` after the left one; both bounds are included.

        `between("-5 s", "10 s")`: from five seconds before to ten seconds after.
        """
        lower_ms, upper_ms = to_signed_ms(lower, "between"), to_signed_ms(upper, "between")
        if lower_ms > upper_ms:
            raise JobError(
                f"between({lower!r}, {upper!r}): the lower bound is above the upper one, so nothing is between: "
                f"write between({upper!r}, {lower!r})"
            )
        return IntervalJoined(self._left, self._right, lower_ms, upper_ms)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_method(self, name, dict.fromkeys(("process", "select", "apply"), _BETWEEN_FIRST))


_BETWEEN_FIRST = 'say first how far apart rows may be, as in interval_join(other).between("-5 s", "10 s")'


@dataclass(frozen=True)
class IntervalJoined:
    """An interval join with its bounds. `select` returns the joined columns; `process` calls a function per pair."""

    _left: KeyedInput
    _right: KeyedInput
    _lower_ms: int
    _upper_ms: int
    _lower_exclusive: bool = False
    _upper_exclusive: bool = False
    _late: tuple[OutputTag | None, OutputTag | None] = (None, None)

    def lower_bound_exclusive(self) -> IntervalJoined:
        """Leaves out rows that are exactly the lower bound apart."""
        return replace(self, _lower_exclusive=True)

    def upper_bound_exclusive(self) -> IntervalJoined:
        """Leaves out rows that are exactly the upper bound apart."""
        return replace(self, _upper_exclusive=True)

    def side_output_left_late_data(self, tag: OutputTag) -> IntervalJoined:
        """Emits late records of the left stream to a side output. They are counted in any case."""
        return replace(self, _late=(_checked_tag("side_output_left_late_data", tag, self._left), self._late[1]))

    def side_output_right_late_data(self, tag: OutputTag) -> IntervalJoined:
        """Emits late records of the right stream to a side output. They are counted in any case."""
        return replace(self, _late=(self._late[0], _checked_tag("side_output_right_late_data", tag, self._right)))

    def select(self, *columns: str, uid: str, suffix: str = "_right") -> DataStream:
        """Returns the joined columns: all of both streams, or those that are named; no Python runs per row.

        A key column that has the same name in both streams is there once; of other equal names, that of the right
        stream gets the suffix.

            orders.key_by("id").interval_join(payments.key_by("id")).between(0, "1 h").select(uid="paid")
        """
        found, schema = joined_columns(f"interval_join {uid!r}", self._left, self._right, columns, suffix)
        return self._add(uid, lambda: ColumnOutput(found, schema), schema, row_lane=False)

    def process(self, function: ProcessJoinFunction, uid: str, schema: pa.Schema | str | None = None) -> DataStream:
        """Calls the function with each pair; it returns any number of records of `schema`.

        `yield TAG, record` emits to a side output.
        """
        what = f"interval_join {uid!r}"
        checked_pair_function(
            f"{what}, process", function, ProcessJoinFunction, "process_element", "left, right, context"
        )
        out = function_schema(what, schema)
        return self._add(uid, lambda: PairOutput(own(function), out), out, row_lane=True)

    def _add(
        self, uid: str, output: Callable[[], ColumnOutput | PairOutput], schema: pa.Schema, row_lane: bool
    ) -> DataStream:
        bounds, late = self._bounds(uid), self._late
        left, right = inputs(self._left, self._right)
        spec = OperatorSpec(
            uid,
            "interval_join",
            lambda: IntervalJoinOperator(left, right, bounds, output(), late),
            row_lane=row_lane,
            state={"bounds": str(bounds), **kept(left, right)},
            emits_aside=row_lane,
            side_outputs=tuple(tag for tag in late if tag is not None),
        )
        return self._left.add_operator(spec, schema, self._right.hashed)

    def _bounds(self, uid: str) -> Bounds:
        """Returns the bounds, both inclusive: event times are whole milliseconds."""
        lower_ms, upper_ms = self._lower_ms + self._lower_exclusive, self._upper_ms - self._upper_exclusive
        if lower_ms > upper_ms:
            raise JobError(
                f"interval_join {uid!r}: between {self._lower_ms} ms and {self._upper_ms} ms, without the bounds "
                "themselves, there is no time: make the interval longer, or include a bound"
            )
        return Bounds(lower_ms, upper_ms)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_method(self, name, _INSTEAD)


_INSTEAD = {
    **{
        name: f'end the join with select(uid=...) or process(function, uid=...), as in select(uid="joined").{name}(...)'
        for name in ("sink_to", "to_spark_table", "print", "map", "flat_map", "filter", "where", "key_by")
    },
    "apply": "an interval join has process(ProcessJoinFunction(), uid=...), as in Flink, or select(uid=...)",
    "window": "an interval join has no windows; left.join(right).where(...).equal_to(...).window(...) has",
}


def _checked_tag(what: str, tag: OutputTag, of: KeyedInput) -> OutputTag:
    checked_is(what, tag, OutputTag, 'a tag such as OutputTag("late", "n long")')
    visible = [(field.name, field.type) for field in of.schema if field.name != EVENT_TIME]
    if [(field.name, field.type) for field in tag.schema] != visible:
        raise JobError(
            f"{what}: the tag {tag.name!r} declares ({described(tag.schema)}), but the records of the stream are "
            f"({described(of.schema)}): declare the same"
        )
    return tag
