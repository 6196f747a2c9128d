"""The lineage of a job: an asset for each source and each sink, read from the graph that the job's own code builds.

A job whose code can't be built keeps its stream in Dagster, which says why its lineage is not known: the other jobs of
the code location must not disappear with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg
import pyarrow as pa

from engine.connectors.table import TableSink
from engine.core.errors import WeirError
from engine.graph.job_graph import JobGraph
from engine.process.loading import load
from orchestration.spec import StreamSpec


@dataclass(frozen=True)
class Output:
    """A sink of a job. `target` says what it writes; `schema` is that of its rows."""

    uid: str
    key: dg.AssetKey
    target: str
    is_table: bool
    schema: pa.Schema | None


@dataclass(frozen=True)
class Lineage:
    """What a job reads and writes. `unknown` says why nobody knows; else it is empty."""

    sources: tuple[tuple[str, str], ...] = ()
    """The uid and the class of each source."""
    outputs: tuple[Output, ...] = ()
    unknown: str = ""


def lineage_of(spec: StreamSpec) -> Lineage:
    """Builds the job's graph, as a start would, and reads its sources and sinks."""
    try:
        graph = load(spec.options)
    except WeirError as error:
        return Lineage(unknown=str(error))
    sources = {v.source.uid: type(v.source.source).__name__ for v in graph.vertices if v.source is not None}
    return Lineage(tuple(sources.items()), tuple(_outputs(spec, graph)))


def _outputs(spec: StreamSpec, graph: JobGraph) -> list[Output]:
    found = []
    for operator in (operator for vertex in graph.vertices for operator in vertex.operators):
        if (sink := operator.sink) is None:
            continue
        is_table = isinstance(sink, TableSink)
        name = sink.path if isinstance(sink, TableSink) and sink.in_store else operator.uid
        found.append(
            Output(operator.uid, spec.table_key(name), sink.target or operator.uid, is_table, operator.input_schema)
        )
    return found


def source_specs(spec: StreamSpec, lineage: Lineage) -> list[dg.AssetSpec]:
    return [
        dg.AssetSpec(
            spec.source_key(uid),
            description=f"What {spec.job} reads by its source {uid!r}, a {kind}. Dagster only shows where it belongs.",
            group_name="sources",
            tags=spec.tags,
            owners=list(spec.owners),
        )
        for uid, kind in lineage.sources
    ]


def table_specs(spec: StreamSpec, lineage: Lineage) -> list[dg.AssetSpec]:
    return [
        dg.AssetSpec(
            output.key,
            deps=[spec.stream_key],
            description=f"What readers see of {output.target}: one materialization for each minute with new rows.",
            group_name="tables",
            tags=spec.tags,
            owners=list(spec.owners),
            kinds={"parquet"} if output.is_table else set(),
            metadata=_columns(output.schema),
            partitions_def=partitions_of(spec, output.key),
            freshness_policy=dg.FreshnessPolicy.time_window(fail_window=timedelta(seconds=spec.rows_within_s)),
        )
        for output in lineage.outputs
    ]


def partitions_of(spec: StreamSpec, key: dg.AssetKey) -> dg.DynamicPartitionsDefinition | None:
    """Returns the partitions of a gold's table by event time: its rows may be of any day, of the past or the future."""
    if spec.gold is None or key != spec.table_key(spec.gold.table):
        return None
    return dg.DynamicPartitionsDefinition(name=spec.partitions_name)


def _columns(schema: pa.Schema | None) -> dict[str, dg.TableSchema]:
    if schema is None:
        return {}
    return {"dagster/column_schema": dg.TableSchema([dg.TableColumn(f.name, str(f.type)) for f in schema])}


def source_keys(spec: StreamSpec, lineage: Lineage) -> Sequence[dg.AssetKey]:
    return [spec.source_key(uid) for uid, _ in lineage.sources]
