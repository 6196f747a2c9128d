"""Placement: the parallelism and the slots of the operator that was added last (A9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from engine.core.errors import JobError
from engine.graph.stream_graph import StreamNode

if TYPE_CHECKING:  # the environment makes streams, so it imports their files
    from engine.api.environment import StreamEnvironment


class Placed:
    """A stream or a sink. It stands for the operator that was added last, and says where that operator runs."""

    def __init__(self, env: StreamEnvironment, node: int) -> None:
        self._env = env
        self._node = node

    def set_parallelism(self, parallelism: int) -> Self:
        """Sets the number of subtasks of this operator.

        It goes before the parallelism of the environment, of the submission and of the configuration file.
        """
        node = self._just_added(f"set_parallelism({parallelism})")
        checked_parallelism(parallelism)
        most = node.source.source.max_parallelism if node.source else None
        if most is not None and parallelism > most:
            raise JobError(
                f"source {node.uid!r} has {most} splits, so at parallelism {parallelism} some subtasks would read "
                "nothing: lower it, or set it on the operator that follows"
            )
        node.parallelism, node.own_parallelism = parallelism, True
        return self

    def slot_sharing_group(self, name: str) -> Self:
        """Puts this operator and those behind it into a group; they share slots only with operators of that group."""
        node = self._just_added(f"slot_sharing_group({name!r})")
        if not name:
            raise JobError(f"the slot sharing group of {node.uid!r} needs a name")
        node.slot_sharing_group = name
        return self

    def _just_added(self, what: str) -> StreamNode:
        """Returns the operator, or raises a `JobError` if another follows it, which has taken its placement from it."""
        graph = self._env.graph
        node, after = graph.nodes[self._node], graph.consumers(self._node)
        if after:
            raise JobError(f"{what} comes too late: {after[0].uid!r} already follows {node.uid!r}; call it before")
        return node


def checked_parallelism(parallelism: int) -> int:
    """Returns the parallelism, or raises a `JobError` if there cannot be that many subtasks."""
    if type(parallelism) is not int:
        raise JobError(f"the parallelism is a whole number, 1 or more, not {parallelism!r}")
    if parallelism < 1:
        raise JobError(f"the parallelism must be at least 1, not {parallelism}")
    return parallelism
