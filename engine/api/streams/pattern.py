"""`CEP.pattern` and `PatternStream`: a keyed stream in whose records a pattern is looked for (A11)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from engine.api.functions import checked_function, checked_is, checked_process_function, no_method
from engine.api.patterns import Pattern, checked_pattern
from engine.api.schema import out_schema
from engine.api.streams.keyed import KeyedStream
from engine.api.streams.keyed_input import KeyedInput
from engine.core.authors import defined_at, short_line
from engine.core.ddl import ddl_of
from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME, described
from engine.core.functions import Emitted, Function, Row
from engine.core.pattern_functions import Match, MatchContext, PatternProcessFunction
from engine.core.patterns import PatternSequence
from engine.core.tags import OutputTag
from engine.graph.job_graph import OperatorSpec
from engine.runtime.functions import own
from engine.runtime.operators.pattern import Comparator, DetectPattern
from engine.runtime.patterns.compile import compiled

if TYPE_CHECKING:  # for annotations only: see engine/api/streams/__init__.py
    from engine.api.streams.data import DataStream


class CEP:
    """Looks for patterns, named as in Flink: complex event processing."""

    @staticmethod
    def pattern(stream: KeyedStream, pattern: Pattern, comparator: Comparator | None = None) -> PatternStream:
        """Looks for a pattern in the records of each key, in the order of event time.

        Records of a key with the same event time are taken in the order in which they arrive, or as
        `comparator(left, right)` says, which returns less than 0 if the left one comes first.

            CEP.pattern(logins.key_by("user"), failed).select(alert, uid="alerts", schema="user string")
        """
        checked_is(
            "CEP.pattern", stream, KeyedStream, 'a stream with keys, as in CEP.pattern(stream.key_by("user"), …)'
        )
        keyed = stream._keyed
        if EVENT_TIME not in keyed.schema.names:
            raise JobError(
                "CEP.pattern needs event time: call assign_timestamps_and_watermarks(...) before key_by(...)"
            )
        if comparator is not None:
            checked_function("comparator", comparator, Function, "lambda left, right: left['n'] - right['n']")
        return PatternStream(keyed, checked_pattern(pattern), comparator)


@dataclass(frozen=True)
class PatternStream:
    """The matches of a pattern; `CEP.pattern` makes one. Results have the schema of the stream if none is given."""

    _keyed: KeyedInput
    _pattern: PatternSequence
    _comparator: Comparator | None = None
    _late: OutputTag | None = None

    def side_output_late_data(self, tag: OutputTag) -> PatternStream:
        """Sends records that come after the watermark to a side output; else they are dropped and counted."""
        checked_is("side_output_late_data", tag, OutputTag, 'a tag such as OutputTag("late", "n long")')
        records = pa.schema([field for field in self._keyed.schema if field.name != EVENT_TIME])
        if not tag.schema.equals(records):
            raise JobError(
                f"side_output_late_data: the tag {tag.name!r} has ({ddl_of(tag.schema)}), but late records are "
                f"those of the stream: declare ({ddl_of(records)})"
            )
        return replace(self, _late=tag)

    def select(self, function: Callable[[Match], Row], uid: str, schema: pa.Schema | str | None = None) -> DataStream:
        """Emits one record for each match: `function` gets the records of the match by the names of the patterns."""
        checked_function("select", function, Function, 'lambda match: {"user": match["failed"][0]["user"]}')
        return self._add(_Select(lambda match: [function(match)], function), uid, schema)

    def flat_select(
        self, function: Callable[[Match], Iterable[Row]], uid: str, schema: pa.Schema | str | None = None
    ) -> DataStream:
        """Emits any number of records for each match."""
        checked_function("flat_select", function, Function, 'lambda match: match["failed"]')
        return self._add(_Select(function, function), uid, schema)

    def process(self, function: PatternProcessFunction, uid: str, schema: pa.Schema | str | None = None) -> DataStream:
        """Calls `process_match` with each match, and `process_timed_out_match` with what `within` ended."""
        checked_process_function("process", function, PatternProcessFunction)
        kind = type(function).__name__
        if type(function).process_match is PatternProcessFunction.process_match:
            raise JobError(f"process: {kind} has no process_match: write def process_match(self, match, context)")
        if function.has_time_out and self._pattern.within_ms is None:
            line = short_line(defined_at(function.process_timed_out_match))
            raise JobError(
                f"process: {kind} has process_timed_out_match ({line}), but the pattern has no limit of time, so "
                "nothing times out: write within(...) behind it"
            )
        return self._add(function, uid, schema)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_method(self, name, _INSTEAD)

    def _add(self, function: PatternProcessFunction, uid: str, schema: pa.Schema | str | None = None) -> DataStream:
        keyed, late, comparator = self._keyed, self._late, self._comparator
        program = compiled(self._pattern)
        out = out_schema(schema, keyed.schema)
        state = {"pattern": self._pattern.described(), "records": described(keyed.schema)}
        spec = OperatorSpec(
            uid,
            "pattern",
            lambda: DetectPattern(own(function), program, keyed.keys, keyed.schema, out, late, comparator),
            row_lane=True,
            state=state,
            emits_aside=True,
            side_outputs=() if late is None else (late,),
        )
        return keyed.add_operator(spec, out)


_INSTEAD = {
    name: f"end the pattern with select(function, uid=...), as in CEP.pattern(...).select(...).{name}(...)"
    for name in (
        *("sink_to", "to_spark_table", "print", "map", "flat_map", "filter", "where", "key_by"),
        "get_side_output",
    )
}


class _Select(PatternProcessFunction):
    def __init__(self, function: Callable[[Match], Iterable[Any]], written: object) -> None:
        self._function = function
        self.written = written
        """What the author wrote: errors name its line."""

    def process_match(self, match: Match, context: MatchContext) -> Iterable[Emitted]:
        return self._function(match)
