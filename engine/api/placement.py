"""Where the operator just added runs: its parallelism and its slots (A9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from engine.core.errors import JobError
from engine.graph.stream_graph import StreamNode

if TYPE_CHECKING:
    from engine.api.environment import StreamEnvironment


class Placed:
    """A stream or a sink, which stands for the operator that was added last."""

    def __init__(self, env: StreamEnvironment, node: int) -> None:
        self._env = env
        self._node = node

    def set_parallelism(self, parallelism: int) -> Self:
        """Of this operator; goes before the environment's, the submission's and the configuration file's."""
        node = self._just_added(f"set_parallelism({parallelism})")
        checked_parallelism(parallelism)
        most = node.source.source.max_parallelism if node.source else None
        if most is not None and parallelism > most:
            raise JobError(
                f"source {node.uid!r} has {most} splits, so at parallelism {parallelism} some subtasks would read "
                "nothing: lower it, or set it on the operator that follows"
            )
        node.parallelism = parallelism
        return self

    def slot_sharing_group(self, name: str) -> Self:
        """This operator, and what follows it, share slots only with what is in the group of this name."""
        node = self._just_added(f"slot_sharing_group({name!r})")
        if not name:
            raise JobError(f"the slot sharing group of {node.uid!r} needs a name")
        node.slot_sharing_group = name
        return self

    def _just_added(self, what: str) -> StreamNode:
        graph = self._env.graph
        node, after = graph.nodes[self._node], graph.consumers(self._node)
        if after:
            raise JobError(f"{what} comes too late: {after[0].uid!r} follows {node.uid!r} already; call it before")
        return node


class DataStreamSink(Placed):
    """The end of a stream."""


def checked_parallelism(parallelism: int) -> int:
    if parallelism < 1:
        raise JobError(f"the parallelism must be at least 1, not {parallelism}")
    return parallelism
