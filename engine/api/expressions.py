"""Compiles the expressions of `select` and `where`, of polars or SQL texts, to functions of a batch.

Invariant: an expression computes each record from that record alone. Batches are as large as what has arrived, so an
expression over all rows of a batch would give a different result after each replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from engine.api.functions import shown
from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME, EVENT_TIME_FIELD, described

_MASK = f"{EVENT_TIME}.mask"  # no column of a stream can have this name or the next
_LENGTH = f"{EVENT_TIME}.length"

Apply = Callable[[pa.RecordBatch], pa.RecordBatch]
Columns = frozenset[str] | None
"""The columns that an expression reads; None: it may read all."""


def selection(
    before: pa.Schema, columns: Sequence[str | pl.Expr], named: Mapping[str, str | pl.Expr]
) -> tuple[Apply, pa.Schema, Columns]:
    """Returns the function that computes these columns of a batch, their schema, and the columns that it reads."""
    if not columns and not named:
        raise JobError("select needs at least one column or expression")
    kept = [column for column in columns if isinstance(column, str) and not is_sql(before, column)]
    in_order = [_column(before, column) if isinstance(column, str) else column for column in columns]
    in_order += [_expression("select", e).alias(name) for name, e in named.items()]
    plain = [isinstance(column, str) and column in kept for column in columns] + [False] * len(named)
    computed = [expression for expression, name in zip(in_order, plain, strict=True) if not name]
    for expression in computed:
        _check_per_record("select", expression)
    made = _try("select", before, in_order)
    if EVENT_TIME in made.names:
        raise JobError(f"select: the name {EVENT_TIME!r} is reserved; event time is carried along in any case")
    fields = [before.field(f.name) if f.name in kept else f for f in made]
    if EVENT_TIME in before.names:
        fields.append(EVENT_TIME_FIELD)
    schema = pa.schema(fields)
    read = _columns_of(computed)

    def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
        table = _evaluated(batch, read, computed) if computed else None
        arrays = [
            batch.column(field.name)
            if table is None or field.name in kept or field.name == EVENT_TIME
            else table.column(field.name).combine_chunks().cast(field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return apply, schema, None if read is None else read | frozenset(kept)


def is_sql(before: pa.Schema, text: str) -> bool:
    """Says whether a text is a SQL expression, and not the name of a column, right or wrong."""
    return text not in before.names and not text.isidentifier()


def filtering(before: pa.Schema, condition: str | pl.Expr) -> tuple[Apply, Columns]:
    """Returns the function that keeps the rows of a batch for which the condition is true, and the columns it reads."""
    expression = _expression("where", condition)
    _check_per_record("where", expression)
    made = _try("where", before, [expression])
    if len(made) != 1 or not pa.types.is_boolean(made.field(0).type):
        raise JobError(f"where needs one condition that is true or false; this expression gives ({described(made)})")

    read = _columns_of([expression])

    def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(_evaluated(batch, read, [expression.alias(_MASK)]).column(_MASK).combine_chunks())

    return apply, read


def _columns_of(expressions: Sequence[pl.Expr]) -> Columns:
    """Returns the columns that expressions read; None: those that a selector such as `pl.all()` finds."""
    read: set[str] = set()
    for expression in expressions:
        if expression.meta.has_multiple_outputs():
            return None
        read.update(expression.meta.root_names())
    return frozenset(read)


def _evaluated(batch: pa.RecordBatch, read: Columns, expressions: Sequence[pl.Expr]) -> pa.Table:
    """Evaluates expressions on the columns that they read: polars makes copies of texts."""
    names = [name for name in batch.schema.names if name in read] if read is not None else batch.schema.names
    frame = _frame(batch.select(names or batch.schema.names[:1]))
    length = pl.col(frame.columns[0]).alias(_LENGTH)  # beside it, polars repeats a constant for each row
    made = frame.select(*expressions, length).drop(_LENGTH)
    return made.to_arrow(compat_level=pl.CompatLevel.oldest())


def _try(kind: str, before: pa.Schema, expressions: list[pl.Expr]) -> pa.Schema:
    """Returns the schema of the results, found by running the expressions on an empty batch."""
    try:
        made = _frame(before.empty_table()).select(expressions)
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        said = " ".join(str(error).split())  # polars writes several lines
        raise JobError(f"{kind} on a stream of ({described(before)}): {said}") from error
    fields = made.to_arrow(compat_level=pl.CompatLevel.oldest()).schema
    return pa.schema([pa.field(field.name, _spark_type(field.type)) for field in fields])


def _frame(data: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(data)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _sql(kind: str, text: str) -> pl.Expr:
    try:
        return pl.sql_expr(text)
    except pl.exceptions.PolarsError as error:
        raise JobError(f"{kind}: {text!r} is not a SQL expression, such as 'bytes > 1024': {error}") from error


def _column(before: pa.Schema, text: str) -> pl.Expr:
    """Returns the column of this name, or a SQL expression that says its own name."""
    if not is_sql(before, text):
        return pl.col(text)
    expression = _sql("select", text)
    if expression.meta.undo_aliases().meta.eq(expression):
        raise JobError(f"select: {text!r} gives a column without a name: write select(name={text!r}), or AS behind it")
    return expression


def _expression(kind: str, given: Any) -> pl.Expr:
    if isinstance(given, str):
        return _sql(kind, given)
    if not isinstance(given, pl.Expr):
        if isinstance(given, list | tuple):
            columns = ", ".join(map(repr, given))
            raise JobError(
                f"{kind}: not a {type(given).__name__}: write its columns one by one, as in {kind}({columns})"
            )
        rows = {"where": "filter(function)", "select": "map(function, schema)"}.get(kind)
        told = f"; for a function of a record write {rows}" if rows and callable(given) else ""
        raise JobError(
            f"{kind} takes polars expressions such as pl.col('a') > 1, or SQL such as 'a > 1', not {shown(given)}{told}"
        )
    return given


def _check_per_record(kind: str, given: Any) -> None:
    """Raises a `JobError` for an expression that looks at several records, such as a sum or a shift."""
    todo = [_expression(kind, given)]
    while todo:
        expression = todo.pop()
        if "element()" in str(expression):
            continue  # it looks at the elements of one list, such as list.reverse
        try:
            per_record = expression.meta.is_row_separable()
            one_to_one = expression.meta.is_length_preserving() or expression.meta.is_scalar()
        except pl.exceptions.PolarsError:  # a selector or a Python function: polars cannot tell without the columns
            per_record = one_to_one = True
        if not per_record or not one_to_one:
            raise JobError(
                f"{kind}: {expression} is not an expression of one record, so its result would depend on how records "
                "happen to be batched; use key_by(...) with window(...).aggregate(...), reduce or process"
            )
        todo += expression.meta.pop()


def _spark_type(made: pa.DataType) -> pa.DataType:
    """Returns the type that Spark has for a polars result, also inside lists, maps and structs.

    Polars makes strings, binaries and lists with 64-bit offsets; Spark has those with 32-bit offsets.
    """
    types = pa.types
    if types.is_large_string(made) or types.is_string_view(made):
        return pa.string()
    if types.is_large_binary(made) or types.is_binary_view(made):
        return pa.binary()
    if types.is_dictionary(made):
        return _spark_type(made.value_type)
    if types.is_large_list(made) or types.is_list(made):
        return pa.list_(pa.field("element", _spark_type(made.value_type)))
    if types.is_map(made):
        key = pa.field("key", _spark_type(made.key_type), nullable=False)
        return pa.map_(key, pa.field("value", _spark_type(made.item_type)))
    if types.is_struct(made):
        return pa.struct([pa.field(field.name, _spark_type(field.type)) for field in made])
    return made
