"""`FailedRecords`: leaves out the records that an operator can't process, where its author asked for it (`on_error`).

Invariant: a record that is left out has left nothing behind: no results, and no change of keyed state or timers. What
a function keeps elsewhere, such as in its attributes or in operator state, is its own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from engine.core.authors import raised, short_line
from engine.core.errors import UnfitState
from engine.core.event_time import EVENT_TIME
from engine.core.failed_records import FAILED
from engine.core.functions import Row
from engine.core.tags import OutputTag
from engine.protocol import ledger
from engine.runtime.operators.base import Operator, OperatorContext
from engine.runtime.operators.records import batch_of

_INT_BITS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}


class FailedRecords:
    """Counts the records that are left out, and makes dead letters of them if they are wanted."""

    def __init__(self, dead_letters: bool) -> None:
        self.dead_letters = dead_letters
        self._context: OperatorContext | None = None

    def open(self, context: OperatorContext) -> None:
        self._context = context

    def left_out(self, error: Exception, record: Callable[[], Row], line: str = "") -> list[tuple[OutputTag, Row]]:
        """Returns what is emitted in place of the results of a record.

        `line` is that of the function, for errors that tell what it returned.
        """
        assert self._context is not None, "a record before the operator was opened"
        self._context.count(ledger.failed_rows(self._context.uid), 1)
        if not self.dead_letters:
            return []
        at = raised(error)
        letter = {
            "operator": self._context.uid,
            "reason": f"{at.type}: {at.message}",
            "line": short_line(at.line or line) if at.line or line else None,
            "record": as_json(record()),
        }
        return [(FAILED, letter)]


def leaving_out(build: Callable[[], Operator], dead_letters: bool) -> Operator:
    """Builds an operator that leaves out the records that it can't process."""
    operator = build()
    operator.leave_out(FailedRecords(dead_letters))
    return operator


def as_json(record: Row) -> str:
    try:
        return msgspec.json.encode(record, enc_hook=str).decode()
    except (TypeError, ValueError):  # a map with keys that JSON does not have
        return msgspec.json.encode({name: repr(value) for name, value in record.items()}).decode()


def record_is_to_blame(error: Exception) -> bool:
    """Says whether an error is that of a record.

    One of the operating system is not: without the service that a function asks, no record could be processed, and all
    of them would be left out. Nor is that of a state which does not fit what the snapshot holds.
    """
    return not isinstance(error, OSError | MemoryError | UnfitState)


class ResultCheck:
    """Refuses a result that does not fit the declared schema, as the batch of all results would, but one at a time."""

    def __init__(self, schema: pa.Schema, operator: str) -> None:
        self._schema = pa.schema([field for field in schema if field.name != EVENT_TIME])
        self._fits = [(field.name, _fits(field)) for field in self._schema]
        self._operator = operator

    def __call__(self, results: Sequence[Any], asides: bool) -> None:
        for result in results:
            if asides and _goes_aside(result):
                tag, record = result
                batch_of([record], tag.schema, f"{self._operator}, side output {tag.name!r}", None)
            elif not self._surely_fits(result):
                batch_of([result], self._schema, self._operator, None)

    def _surely_fits(self, result: Any) -> bool:
        if type(result) is not dict or len(result) != len(self._fits):
            return False
        return all(name in result and fits(result[name]) for name, fits in self._fits)


def _goes_aside(result: Any) -> bool:
    return (
        type(result) is tuple
        and len(result) == 2
        and isinstance(result[0], OutputTag)
        and isinstance(result[1], Mapping)
    )


def _fits(field: pa.Field) -> Callable[[Any], bool]:
    """Returns a cheap check of a value. One that it does not know for sure is looked at by Arrow."""
    kind, nullable = field.type, field.nullable
    if kind in _INT_BITS:
        limit = 2 ** _INT_BITS[kind]
        return lambda value: (type(value) is int and -limit <= value < limit) or (value is None and nullable)
    if pa.types.is_string(kind):
        return lambda value: (type(value) is str and value.isascii()) or (value is None and nullable)
    plain = {pa.float64(): float, pa.bool_(): bool}.get(kind)
    return lambda value: (plain is not None and type(value) is plain) or (value is None and nullable)
