"""What is said of the operator that was added last: its parallelism, its slots, and what it does with bad records."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self

from engine.core.errors import JobError
from engine.core.failed_records import FAILED, POLICIES, Policy
from engine.graph.stream_graph import StreamNode
from engine.runtime.operators.failed_records import leaving_out

if TYPE_CHECKING:  # the environment makes streams, so it imports their files
    from engine.api.environment import StreamEnvironment


class Placed:
    """A stream or a sink. It stands for the operator that was added last, and says where and how that operator runs."""

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

    def on_error(self, policy: Policy) -> Self:
        """Says what becomes of records at which the function of this operator raises, or returns what does not fit.

        "fail" ends the job, after one more try, and is the default. "skip" leaves the record out and counts it.
        "dead_letter" also emits it, with the reason, to the side output `FAILED`. A record that is left out has changed
        neither the state of its key nor timers. An error of the operating system, such as a connection that is
        refused, is not the record's fault: it fails the attempt under each policy.

            orders = lines.map(parse, schema="id long, cents long").on_error("dead_letter")
            orders.get_side_output(FAILED).sink_to(TableSink("failed"), uid="failed")
        """
        node = self._just_added(f"on_error({policy!r})")
        if policy not in POLICIES:
            raise JobError(f"on_error({policy!r}): write 'fail', 'skip' or 'dead_letter'")
        spec = node.operator
        if spec is None:
            raise JobError(
                f"on_error: {node.uid!r} is a source; some sources take malformed={policy!r}, such as CsvSource, and "
                "on_error(...) belongs behind an operator such as map(...)"
            )
        if not spec.each_record:
            raise JobError(
                f"on_error: {node.uid!r} ({spec.kind}) can't leave single records out; map, flat_map, filter, process, "
                "reduce, windows with functions, connected streams, select, where and map_batches can"
            )
        if spec.on_error != "fail":
            raise JobError(f"on_error is called twice for {node.uid!r}, first with {spec.on_error!r}: call it once")
        if policy != "fail":
            letters = policy == "dead_letter"
            asides = (*spec.side_outputs, FAILED) if letters else spec.side_outputs
            build = partial(leaving_out, spec.build, letters)
            node.operator = replace(spec, build=build, side_outputs=asides, on_error=policy)
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
