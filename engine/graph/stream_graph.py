"""`StreamGraph`: the operators as the author wrote them; and its translation, by chaining, to a `JobGraph`.

Neighbours with the same parallelism, in the same slots and with no exchange between them become one vertex (A10).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import pyarrow as pa

from engine.graph.errors import JobError
from engine.graph.exchange import Exchange, ExchangeKind
from engine.graph.job_graph import JobEdge, JobGraph, JobVertex, OperatorSpec, SourceSpec
from engine.protocol.config import CheckpointConfig
from engine.protocol.restart import RestartStrategy
from engine.runtime.tags import OutputTag
from engine.state.keygroups import check_parallelism

DEFAULT_GROUP = "default"


@dataclass
class StreamNode:
    """One operator. The schema is of what it emits. `exchange`: what the author put before it; None: nothing.

    `tag`: it takes this side output of its input; None: the main one.
    """

    id: int
    uid: str
    schema: pa.Schema
    parallelism: int
    source: SourceSpec | None = None
    operator: OperatorSpec | None = None
    input: int | None = None
    exchange: Exchange | None = None
    slot_sharing_group: str = DEFAULT_GROUP
    tag: OutputTag | None = None


@dataclass
class StreamGraph:
    nodes: list[StreamNode] = field(default_factory=list)

    def add_source(self, spec: SourceSpec, parallelism: int) -> int:
        return self._add(StreamNode(len(self.nodes), spec.uid, spec.schema, parallelism, source=spec))

    def add_operator(
        self,
        spec: OperatorSpec,
        schema: pa.Schema,
        parallelism: int,
        input_node: int,
        exchange: Exchange | None = None,
        tag: OutputTag | None = None,
    ) -> int:
        """It is in the slots of what is before it."""
        node = StreamNode(
            len(self.nodes),
            spec.uid,
            schema,
            parallelism,
            operator=spec,
            input=input_node,
            exchange=exchange,
            slot_sharing_group=self.nodes[input_node].slot_sharing_group,
            tag=tag,
        )
        return self._add(node)

    def next_uid(self, kind: str) -> str:
        """For operators without state, whose name nobody has to find again."""
        return f"{kind}-{len(self.nodes)}"

    def _add(self, node: StreamNode) -> int:
        if not node.uid:
            raise JobError(f"{node.operator.kind if node.operator else 'a source'} needs a uid: state is found by it")
        if any(other.uid == node.uid for other in self.nodes):
            raise JobError(f"two operators have the uid {node.uid!r}; uids must be unique within a job")
        self.nodes.append(node)
        return node.id

    def consumers(self, node: int) -> list[StreamNode]:
        """Of its main output."""
        return [other for other in self.nodes if other.input == node and other.tag is None]

    def exchange(self, node: StreamNode) -> Exchange:
        """What lies before it: the author's choice, or straight on, and spread evenly to another parallelism."""
        assert node.input is not None
        before = self.nodes[node.input]
        same = before.parallelism == node.parallelism
        if node.exchange is None:
            return Exchange(ExchangeKind.FORWARD if same else ExchangeKind.REBALANCE)
        if node.exchange.kind is ExchangeKind.FORWARD and not same:
            raise JobError(
                f"forward() from {before.uid!r} (parallelism {before.parallelism}) to {node.uid!r} (parallelism "
                f"{node.parallelism}): set_parallelism(...) to the same for both, or use rebalance() or rescale()"
            )
        return node.exchange

    def translate(
        self, name: str, checkpoints: CheckpointConfig, restart: RestartStrategy, max_parallelism: int, code: str
    ) -> JobGraph:
        if not self.nodes:
            raise JobError("the job has no source: begin with env.from_source(...) or env.from_elements(...)")
        for node in self.nodes:
            if not self.consumers(node.id) and not (node.operator and node.operator.sink):
                raise JobError(f"nothing follows {node.uid!r}: end the stream with sink_to(...) or print()")
        self._check_sinks()
        self._check_side_outputs()
        for node in self.nodes:
            try:
                check_parallelism(node.parallelism, max_parallelism)
            except ValueError as error:
                raise JobError(f"{node.uid!r}: {error}") from error
        head_of: dict[int, int] = {}
        members: dict[int, list[StreamNode]] = {}
        for node in self.nodes:
            head = node.id
            if node.input is not None and self._chains(self.nodes[node.input], node):
                head = head_of[node.input]
            head_of[node.id] = head
            members.setdefault(head, []).append(node)
        vertices = tuple(
            JobVertex(
                nodes[0].uid,
                nodes[0].parallelism,
                nodes[0].source,
                tuple(node.operator for node in nodes if node.operator),
                nodes[0].slot_sharing_group,
            )
            for nodes in members.values()
        )
        edges = tuple(
            JobEdge(
                f"{self.nodes[head_of[node.input]].uid}->{node.uid}",
                self.nodes[head_of[node.input]].uid,
                node.uid,
                node.tag.schema if node.tag else self.nodes[node.input].schema,
                self.exchange(node),
                (self.nodes[node.input].uid, node.tag.name) if node.tag else None,
            )
            for node in self.nodes
            if node.input is not None and head_of[node.id] == node.id
        )
        graph = JobGraph(name, vertices, edges, max_parallelism, checkpoints, restart, "")
        return replace(graph, fingerprint=_fingerprint(graph, code))

    def _check_sinks(self) -> None:
        """Two sinks that write to one place would overwrite each other's files."""
        owner: dict[str, str] = {}
        for node in self.nodes:
            target = node.operator.sink.target if node.operator and node.operator.sink else None
            if target is not None and owner.setdefault(target, node.uid) != node.uid:
                raise JobError(
                    f"the sinks {owner[target]!r} and {node.uid!r} both write to {target}: give each its own"
                )

    def _check_side_outputs(self) -> None:
        """What a source sends aside and nobody takes would be lost without a word."""
        for node in self.nodes:
            for tag in node.source.source.side_outputs if node.source else ():
                if not any(other.input == node.id and other.tag == tag for other in self.nodes):
                    raise JobError(
                        f"nobody takes the {tag.name} records of source {node.uid!r}: end them with "
                        f"side_output({tag.name.upper()}).sink_to(...) too"
                    )

    def _chains(self, before: StreamNode, after: StreamNode) -> bool:
        straight = self.exchange(after).kind is ExchangeKind.FORWARD
        together = before.slot_sharing_group == after.slot_sharing_group
        return straight and together and after.tag is None and len(self.consumers(before.id)) == 1


def _fingerprint(graph: JobGraph, code: str) -> str:
    """Differs when a slot would run something else than the JobMaster believes."""
    plan = [(v.id, v.parallelism, v.uids, v.slot_sharing_group) for v in graph.vertices]
    edges = [(e.id, str(e.schema), str(e.exchange)) for e in graph.edges]
    return hashlib.sha256(repr((plan, edges, graph.max_parallelism, graph.checkpoints, code)).encode()).hexdigest()[:16]
