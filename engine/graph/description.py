"""Describes a job graph for its manifests, as far as state, positions and output depend on it."""

from __future__ import annotations

import pyarrow as pa

from engine.connectors.table import TableSink
from engine.core.columns import stored_columns
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.core.sinks import Committer, Sink
from engine.graph.exchange import ExchangeKind
from engine.graph.job_graph import JobGraph, JobVertex, OperatorSpec
from engine.protocol.job_description import (
    Column,
    JobDescription,
    OperatorDescription,
    SinkDescription,
    SourceDescription,
)


def describe(graph: JobGraph, before: JobDescription, next_epoch: int) -> JobDescription:
    """Describes a job that goes on from a snapshot of `before`. Sinks that are new begin with `next_epoch`."""
    first_epochs = {sink.uid: sink.first_epoch for sink in before.sinks}
    sources = [vertex.source for vertex in graph.vertices if vertex.source is not None]
    return JobDescription(
        [
            OperatorDescription(operator.uid, operator.kind, _keys(graph, vertex, operator), dict(operator.state))
            for vertex in graph.vertices
            for operator in vertex.operators
            if (operator.named or operator.state) and operator.sink is None and operator.static is None
        ],
        [
            SourceDescription(
                of.uid, _kind(of.source), of.source.positions, of.strategy.column if of.strategy is not None else ""
            )
            for of in sources
        ],
        [
            SinkDescription(
                operator.uid,
                _kind(operator.sink),
                operator.sink.target or "",
                operator.sink.path if isinstance(operator.sink, TableSink) else "",
                _columns(operator.sink, operator.input_schema),
                first_epochs.get(operator.uid, next_epoch),
                operator.sink.gains_columns,
            )
            for vertex in graph.vertices
            for operator in vertex.operators
            if operator.sink is not None
        ],
    )


def table_committer(sink: SinkDescription, store: Store, paths: JobPaths) -> Committer | None:
    """Returns a committer for the table of a sink that the job may no longer have; None if it writes no table."""
    return TableSink(sink.table).committer(store, paths) if sink.table else None


def table_place(sink: SinkDescription, store: Store, paths: JobPaths) -> tuple[Store, str]:
    """Returns the store of a table, and its path there."""
    return TableSink(sink.table).place(store, paths)


def _kind(thing: object) -> str:
    """Returns the name of the class, or of its nearest base class in Weir: an author may rename classes of his own."""
    return next(base.__name__ for base in type(thing).__mro__ if base.__module__.split(".")[0] == "engine")


def _keys(graph: JobGraph, vertex: JobVertex, operator: OperatorSpec) -> list[Column]:
    """Returns the key columns of an operator. One behind a keyed exchange is always the first of its vertex."""
    if operator is not vertex.operators[0] or vertex.source is not None:
        return []
    return [
        Column(name, str(edge.schema.field(name).type))
        for edge in graph.inputs(vertex.id)
        if edge.exchange.kind is ExchangeKind.HASH
        for name in edge.exchange.columns
    ]


def _columns(sink: Sink, schema: pa.Schema | None) -> list[Column]:
    """Returns the columns that readers of the sink's target see; none if there is no such place, as with print."""
    if sink.target is None or schema is None:
        return []
    return stored_columns(schema)
