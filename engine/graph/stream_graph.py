"""`StreamGraph`: the operators as the author wrote them, and their translation to a `JobGraph`.

The translation chains neighbours into one vertex if they have the same parallelism, the same slot sharing group and no
exchange between them (A10).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import count

import pyarrow as pa

from engine.core.authors import calling_line, short_line
from engine.core.errors import JobError
from engine.core.tags import OutputTag
from engine.graph.exchange import Exchange, ExchangeKind
from engine.graph.job_graph import JobEdge, JobGraph, JobVertex, OperatorSpec, SourceSpec
from engine.protocol.config import CheckpointConfig
from engine.protocol.restart import RestartStrategy
from engine.protocol.scaling import Scaling
from engine.state.key_groups import check_parallelism

DEFAULT_GROUP = "default"


@dataclass(frozen=True)
class StreamInput:
    """One input of an operator.

    `exchange` is the author's choice, or None. `tag` names a side output of the node; None means its main output.
    """

    node: int
    exchange: Exchange | None = None
    tag: OutputTag | None = None

    @property
    def follows(self) -> bool:
        """True if the operator has the parallelism of the node, unless it sets its own."""
        return self.exchange is None or self.exchange.kind is ExchangeKind.FORWARD


@dataclass
class StreamNode:
    """One operator. `schema` is the schema of its main output."""

    id: int
    uid: str
    schema: pa.Schema
    parallelism: int
    source: SourceSpec | None = None
    operator: OperatorSpec | None = None
    inputs: tuple[StreamInput, ...] = ()
    slot_sharing_group: str = DEFAULT_GROUP
    own_parallelism: bool = False
    """True if the author set the parallelism of this operator."""
    line: str = field(default_factory=calling_line)
    """The author's line that added the operator."""

    @property
    def side_outputs(self) -> tuple[OutputTag, ...]:
        """The side outputs that it is known to emit to. Those of a process function are known to the function only."""
        if self.source is not None:
            return self.source.source.side_outputs
        return self.operator.side_outputs if self.operator is not None else ()

    @property
    def named(self) -> str:
        """The operator's uid and the author's line, for errors that are found after the line was run."""
        return f"{self.uid!r} ({short_line(self.line)})" if self.line else repr(self.uid)


@dataclass
class StreamGraph:
    nodes: list[StreamNode] = field(default_factory=list)

    def add_source(self, spec: SourceSpec, parallelism: int) -> int:
        return self._add(StreamNode(len(self.nodes), spec.uid, spec.schema, parallelism, source=spec))

    def add_operator(self, spec: OperatorSpec, schema: pa.Schema, parallelism: int, *inputs: StreamInput) -> int:
        """Adds an operator to the slot sharing group of its first input; returns its id."""
        group = self.nodes[inputs[0].node].slot_sharing_group
        return self._add(StreamNode(len(self.nodes), spec.uid, schema, parallelism, None, spec, inputs, group))

    def next_uid(self, kind: str) -> str:
        """Returns a generated uid, for an operator without state: its uid may change between versions of a job."""
        return f"{kind}-{len(self.nodes)}"

    def uid_behind(self, node: int, what: str) -> str:
        """Returns a generated uid that stays the same as long as the named operators before it do."""
        before = self.nodes[node]
        while before.operator is not None and not before.operator.named:
            before = self.nodes[before.inputs[0].node]
        uids = {other.uid for other in self.nodes}
        numbered = (f"{before.uid}.{what}" + (f"-{number}" if number > 1 else "") for number in count(1))
        return next(uid for uid in numbered if uid not in uids)

    def _add(self, node: StreamNode) -> int:
        if not isinstance(node.uid, str):
            raise JobError(f"uid={node.uid!r}: a uid is a text, as in uid={str(node.uid)!r}")
        if not node.uid:
            raise JobError(f"{node.operator.kind if node.operator else 'a source'} needs a uid: state is found by it")
        if any(other.uid == node.uid for other in self.nodes):
            first = next(other for other in self.nodes if other.uid == node.uid)
            before = f" (the first: {short_line(first.line)})" if first.line else ""
            raise JobError(f"two operators have the uid {node.uid!r}{before}; uids must be unique within a job")
        self.nodes.append(node)
        return node.id

    def scaled(self, scaling: Scaling) -> StreamGraph:
        """Returns this graph at the parallelism that rescales have decided.

        An operator behind no exchange, or behind `forward`, follows the one before it, as it did when it was written.
        """
        if unknown := [uid for uid in scaling.operators if all(node.uid != uid for node in self.nodes)]:
            raise JobError(_no_operator(unknown[0], [node.uid for node in self.nodes]))
        nodes: list[StreamNode] = []
        for node in self.nodes:
            nodes.append(replace(node, parallelism=_scaled(node, nodes, scaling)))
        return StreamGraph(nodes)

    def consumers(self, node: int) -> list[StreamNode]:
        """Returns the operators that read the main output of a node."""
        return [other for other in self.nodes if any(i.node == node and i.tag is None for i in other.inputs)]

    def side_outputs(self, node: int) -> list[OutputTag]:
        """Returns the side outputs of a node that are used."""
        return [i.tag for other in self.nodes for i in other.inputs if i.node == node and i.tag is not None]

    def exchange(self, taken: StreamInput, node: StreamNode) -> Exchange:
        """Returns the exchange of an input.

        The author's choice comes first. Without one it is FORWARD at the same parallelism, REBALANCE at another.
        """
        before = self.nodes[taken.node]
        same = before.parallelism == node.parallelism
        if taken.exchange is None:
            return Exchange(ExchangeKind.FORWARD if same else ExchangeKind.REBALANCE)
        if taken.exchange.kind is ExchangeKind.FORWARD and not same:
            raise JobError(
                f"forward() from {before.uid!r} (parallelism {before.parallelism}) to {node.named} (parallelism "
                f"{node.parallelism}): set_parallelism(...) to the same for both, or use rebalance() or rescale()"
            )
        return taken.exchange

    def translate(
        self, name: str, checkpoints: CheckpointConfig, restart: RestartStrategy, max_parallelism: int, code: str
    ) -> JobGraph:
        if not self.nodes:
            raise JobError("the job has no source: begin with env.from_source(...) or env.from_elements(...)")
        for node in self.nodes:
            if not self.consumers(node.id) and not (
                node.operator and (node.operator.sink or self.side_outputs(node.id))
            ):
                raise JobError(f"nothing follows {node.named}: end the stream with sink_to(...) or print()")
        self._check_sinks()
        self._check_side_outputs()
        for node in self.nodes:
            try:
                check_parallelism(node.parallelism, max_parallelism)
            except ValueError as error:
                raise JobError(f"{node.named}: {error}") from error
        head_of: dict[int, int] = {}
        members: dict[int, list[StreamNode]] = {}
        for node in self.nodes:
            head = head_of[node.inputs[0].node] if self._chains(node) else node.id
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
            self._edge(self.nodes[head_of[taken.node]].uid, taken, number, node)
            for node in self.nodes
            if head_of[node.id] == node.id
            for number, taken in enumerate(node.inputs)
        )
        graph = JobGraph(name, vertices, edges, max_parallelism, checkpoints, restart, "")
        return replace(graph, fingerprint=_fingerprint(graph, code))

    def _edge(self, source: str, taken: StreamInput, number: int, node: StreamNode) -> JobEdge:
        before = self.nodes[taken.node]
        return JobEdge(
            f"{source}->{node.uid}" if number == 0 else f"{source}->{node.uid}#{number + 1}",
            source,
            node.uid,
            taken.tag.schema if taken.tag else before.schema,
            self.exchange(taken, node),
            (before.uid, taken.tag.name) if taken.tag else None,
            0 if node.operator is not None and node.operator.unites else number,
        )

    def _check_sinks(self) -> None:
        """Refuses two sinks that write to one place: they would overwrite each other's files."""
        owner: dict[str, str] = {}
        for node in self.nodes:
            for target in node.operator.sink.targets if node.operator and node.operator.sink else ():
                if owner.setdefault(target, node.uid) != node.uid:
                    raise JobError(
                        f"the sinks {owner[target]!r} and {node.named} both write to {target}: give each its own"
                    )

    def _check_side_outputs(self) -> None:
        """Refuses a source or window whose side output has no consumer: its records would be lost silently."""
        for node in self.nodes:
            for tag in node.side_outputs:
                if tag.name not in {taken.name for taken in self.side_outputs(node.id)}:
                    raise JobError(
                        f"the {tag.name} records of {'source ' if node.source else ''}{node.named} have no consumer: "
                        f"end them with get_side_output({tag.name.upper()}).sink_to(...) too"
                    )

    def _chains(self, node: StreamNode) -> bool:
        """Returns True if a node is chained to the node before it, its only input.

        It must be that node's only consumer, take its main output by FORWARD, and share its slots.
        """
        if len(node.inputs) != 1:
            return False
        (taken,) = node.inputs
        straight = self.exchange(taken, node).kind is ExchangeKind.FORWARD
        together = self.nodes[taken.node].slot_sharing_group == node.slot_sharing_group
        return straight and together and taken.tag is None and len(self.consumers(taken.node)) == 1


def _scaled(node: StreamNode, before: Sequence[StreamNode], scaling: Scaling) -> int:
    """Returns the parallelism of a node; `before` are the nodes before it, at theirs."""
    most = node.source.source.max_parallelism if node.source else None
    wanted = scaling.operators.get(node.uid)
    if wanted is not None:
        if wanted < 1:
            raise JobError(f"the parallelism of {node.uid!r} must be at least 1, not {wanted}")
        if most is not None and wanted > most:
            raise JobError(f"source {node.uid!r} has {most} splits, so its parallelism can't be {wanted}: lower it")
        return wanted
    if node.own_parallelism:
        return node.parallelism
    if node.inputs and node.inputs[0].follows:
        return before[node.inputs[0].node].parallelism
    if scaling.parallelism is None:
        return node.parallelism
    if scaling.parallelism < 1:
        raise JobError(f"the parallelism must be at least 1, not {scaling.parallelism}")
    return scaling.parallelism if most is None else min(scaling.parallelism, most)


def _no_operator(uid: str, known: Sequence[str]) -> str:
    nearest = get_close_matches(uid, known, 1, cutoff=0.5)
    meant = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    return f"the job has no operator {uid!r}{meant}; it has: {', '.join(known)}"


def _fingerprint(graph: JobGraph, code: str) -> str:
    """Returns a hash that differs if a slot would run something else than the JobMaster."""
    plan = [(v.id, v.parallelism, v.uids, v.slot_sharing_group) for v in graph.vertices]
    edges = [(e.id, str(e.schema), str(e.exchange)) for e in graph.edges]
    return hashlib.sha256(repr((plan, edges, graph.max_parallelism, graph.checkpoints, code)).encode()).hexdigest()[:16]
