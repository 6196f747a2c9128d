"""`JobGraph`: operators chained into vertices, and the edges between them.

Invariant: the JobMaster and every slot have the same JobGraph; they compare its fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from engine.connectors.dataframe import DataFrameTable
from engine.core.event_time import EventTimeStrategy
from engine.core.failed_records import Policy
from engine.core.sinks import Sink
from engine.core.sources import Source
from engine.core.tags import OutputTag
from engine.graph.exchange import Exchange
from engine.protocol.config import CheckpointConfig
from engine.protocol.restart import RestartStrategy
from engine.runtime.operators.base import Operator


@dataclass(frozen=True)
class SourceSpec:
    uid: str
    source: Source
    schema: pa.Schema
    strategy: EventTimeStrategy | None
    digest: bool = False


@dataclass(frozen=True)
class OperatorSpec:
    """Describes an operator. `build` makes a new operator for each subtask.

    `named` is True if the author chose the uid, so that state is found by it. `row_lane` is True if the operator runs
    Python per record. `state` holds by name what makes its saved state unreadable if it changes, as text.
    `input_schema` is the schema of a sink's records. `emits_aside` is True if it may emit to side outputs. `unites` is
    True if all of its inputs are one: the operator does not know from which a record comes. `side_outputs` are those it
    is known to emit to, which have to be taken. `corrects` is True if it may emit a later result for the same window.
    `each_record` is True if it can leave out single records that it can't process; `on_error` is whether it does.
    """

    uid: str
    kind: str
    build: Callable[[], Operator]
    named: bool = True
    row_lane: bool = False
    sink: Sink | None = None
    static: DataFrameTable | None = None
    state: Mapping[str, str] = field(default_factory=dict)
    input_schema: pa.Schema | None = None
    emits_aside: bool = False
    unites: bool = False
    side_outputs: tuple[OutputTag, ...] = ()
    corrects: bool = False
    each_record: bool = False
    on_error: Policy = "fail"


@dataclass(frozen=True)
class JobVertex:
    id: str
    parallelism: int
    source: SourceSpec | None
    operators: tuple[OperatorSpec, ...]
    slot_sharing_group: str

    @property
    def uids(self) -> list[str]:
        """The uids of its operators, in the order of the chain."""
        return [*([self.source.uid] if self.source else []), *(operator.uid for operator in self.operators)]

    @property
    def row_lane(self) -> bool:
        return any(operator.row_lane for operator in self.operators)

    @property
    def chain(self) -> tuple[str, ...]:
        """A short description of each operator, in the order of the chain."""
        head = [f"source {self.source.uid}"] if self.source else []
        return (*head, *(f"{o.kind} {o.uid}" if o.uid != o.kind else o.kind for o in self.operators))

    @property
    def label(self) -> str:
        return " → ".join(self.chain)


@dataclass(frozen=True)
class JobEdge:
    """Connects two vertices.

    `side` is set if the edge carries a side output: (the uid of an operator in the source vertex, the name of the tag).
    `input` is the number of the input of the target's first operator, from 0.
    """

    id: str
    source: str
    target: str
    schema: pa.Schema
    exchange: Exchange
    side: tuple[str, str] | None = None
    input: int = 0


@dataclass(frozen=True)
class JobGraph:
    name: str
    vertices: tuple[JobVertex, ...]
    edges: tuple[JobEdge, ...]
    max_parallelism: int
    checkpoints: CheckpointConfig
    restart: RestartStrategy
    fingerprint: str
    _by_id: dict[str, JobVertex] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {vertex.id: vertex for vertex in self.vertices})

    def vertex(self, vertex_id: str) -> JobVertex:
        return self._by_id[vertex_id]

    def inputs(self, vertex_id: str) -> list[JobEdge]:
        return [edge for edge in self.edges if edge.target == vertex_id]

    def outputs(self, vertex_id: str) -> list[JobEdge]:
        return [edge for edge in self.edges if edge.source == vertex_id]

    @property
    def no_checkpoints(self) -> str:
        """What it means that the job takes no checkpoints by itself; empty if it does."""
        if self.checkpoints.interval_ms is not None:
            return ""
        return (
            "no checkpoints: without env.enable_checkpointing(...) output is committed only when a bounded job ends "
            "or by `weir checkpoint`, and after a failure the job begins again from there"
        )

    @property
    def static_tables(self) -> list[tuple[str, DataFrameTable]]:
        return [(o.uid, o.static) for vertex in self.vertices for o in vertex.operators if o.static is not None]

    @property
    def sinks(self) -> list[tuple[str, Sink]]:
        return [(o.uid, o.sink) for vertex in self.vertices for o in vertex.operators if o.sink is not None]
