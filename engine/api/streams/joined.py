"""What all joins of two streams share when a job is written: checks of the two sides, and the columns of the result."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from engine.api.functions import shown
from engine.api.schema import parse_schema
from engine.api.streams.keyed_input import KeyedInput
from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME, EVENT_TIME_FIELD, described
from engine.core.nearest import nearest
from engine.runtime.operators.joins.outputs import WINDOW_END, WINDOW_START, JoinedColumn
from engine.state.joins.rows import JoinInput
from engine.state.key_columns import plain_type

SIDES = ("left", "right")


def check_sides(what: str, left: KeyedInput, right: KeyedInput) -> None:
    """Raises a `JobError` if the two streams can't be joined by their keys and event times."""
    if left.env is not right.env:
        raise JobError(f"{what}: the two streams belong to different environments, so to different jobs")
    if left.key_types != right.key_types:
        one, other = (f"{_named(of)} by ({_keys(of)})" for of in (left, right))
        raise JobError(
            f"{what} needs keys of the same types, but it joins {one} with {other}: cast one of them before, as in "
            f"{_cast(left, right)}"
        )
    for of in (left, right):
        if EVENT_TIME not in of.schema.names:
            raise JobError(
                f"{what} needs event time on both sides, and {_named(of)} has none: call "
                "assign_timestamps_and_watermarks(...) on it, and join the stream that this returns"
            )


def inputs(left: KeyedInput, right: KeyedInput) -> tuple[JoinInput, JoinInput]:
    one, other = (JoinInput.of(name, of.schema, of.keys) for name, of in zip(SIDES, (left, right), strict=True))
    return one, other


def kept(left: JoinInput, right: JoinInput) -> dict[str, str]:
    """Describes the rows that a join keeps, for the check of a changed job."""
    return {f"{of.name} rows": described(of.schema) for of in (left, right)}


def joined_columns(
    what: str, left: KeyedInput, right: KeyedInput, chosen: Sequence[str], suffix: str, windows: bool = False
) -> tuple[list[JoinedColumn], pa.Schema]:
    """Returns the columns of the result, and its schema: all columns of both sides, or those that are chosen.

    A key column that has the same name on both sides is there once. Of other equal names, that of the right stream gets
    the suffix. `windows`: the bounds of the window can be chosen, too.
    """
    found = _all(what, left.schema, right.schema, dict(zip(left.keys, right.keys, strict=True)), suffix)
    names = list(chosen) or list(found)
    if windows:
        stamp = pa.timestamp("us", tz="UTC")
        for bound in (WINDOW_START, WINDOW_END):
            found.setdefault(bound, (JoinedColumn(None, bound), pa.field(bound, stamp)))
    for name in names:
        if not isinstance(name, str):
            raise JobError(
                f"{what}: select takes the names of columns, not {shown(name)}: compute others behind the join, as in "
                f'select("{next(iter(found))}", uid=...).select(...)'
            )
        if name not in found:
            raise JobError(f"{what}: there is no column {name!r}; it has ({', '.join(found)}){nearest(name, found)}")
        if names.count(name) > 1:
            raise JobError(f"{what}: the column {name!r} is there twice: leave one out")
    fields = [found[name][1].with_name(name).with_type(plain_type(found[name][1].type)) for name in names]
    return [found[name][0] for name in names], pa.schema([*fields, EVENT_TIME_FIELD])


def _all(
    what: str, left: pa.Schema, right: pa.Schema, same: dict[str, str], suffix: str
) -> dict[str, tuple[JoinedColumn, pa.Field]]:
    found = {field.name: (JoinedColumn(0, field.name), field) for field in left if field.name != EVENT_TIME}
    for field in right:
        if field.name == EVENT_TIME or same.get(field.name) == field.name:
            continue
        name = field.name + suffix if field.name in left.names else field.name
        if name in found or (name != field.name and name in right.names):
            raise JobError(
                f"{what}: both streams have a column {field.name!r}, and with suffix={suffix!r} that of the right one "
                f"is {name!r}, which is there already: choose another suffix, or rename one with select(...) before"
            )
        found[name] = (JoinedColumn(1, field.name), field)
    return found


def function_schema(what: str, declared: pa.Schema | str | None) -> pa.Schema:
    """Returns the schema of a function's results. It has to be declared: two streams have no common one."""
    if declared is None:
        raise JobError(f'{what}: declare the fields of the results, as in schema="id long, name string"')
    return parse_schema(declared).append(EVENT_TIME_FIELD)


def _named(of: KeyedInput) -> str:
    return of.env.graph.nodes[of.node].named


def _keys(of: KeyedInput) -> str:
    return ", ".join(f"{key} {of.schema.field(key).type}" for key in of.keys)


def _cast(left: KeyedInput, right: KeyedInput) -> str:
    if len(left.keys) != len(right.keys):
        return "key_by(...) with as many columns on both sides"
    differing = zip(left.keys, left.key_types, right.keys, right.key_types, strict=True)
    key, kind = next((key, kind) for _, kind, key, other in differing if kind != other)
    return f"select(..., {key}=pl.col({key!r}).cast(...)) to {kind}"
