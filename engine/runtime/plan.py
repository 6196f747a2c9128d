"""What one slot is given to run: the subtasks in it, their operators, and the channels from and to them.

A plan is the same in every attempt: whatever keeps something per attempt (operators, heads, partitioners) is in it as
the function that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from engine.protocol.config import CheckpointingMode
from engine.protocol.ids import ChannelId, SubtaskId
from engine.runtime.exchange.partitioners import Partitioner
from engine.runtime.operators.base import Operator
from engine.runtime.source_head import SourceHead
from engine.state.key_groups import KeyGroupRange


@dataclass(frozen=True)
class SourcePlan:
    uid: str
    build: Callable[[], SourceHead]


@dataclass(frozen=True)
class OperatorPlan:
    """`named`: the uid is the author's own, so state is found by it."""

    uid: str
    build: Callable[[], Operator]
    named: bool


@dataclass(frozen=True)
class InputPlan:
    """One edge that leads to a subtask. `second`: it is the second input of the first operator."""

    edge: str
    channels: Sequence[ChannelId]
    schema: pa.Schema
    second: bool


@dataclass(frozen=True)
class OutputPlan:
    """One edge that leads away from a subtask. `channels`: each with the slot of its receiver.

    `side`: the edge carries the side output of this tag (its name) of this operator (its uid).
    """

    edge: str
    channels: Mapping[ChannelId, int]
    schema: pa.Schema
    partitioner: Callable[[], Partitioner]
    side: tuple[str, str] | None


@dataclass(frozen=True)
class SubtaskPlan:
    """A subtask has a source or inputs. `row_lane`: some operator runs Python per record."""

    id: SubtaskId
    parallelism: int
    max_parallelism: int
    key_groups: KeyGroupRange
    row_lane: bool
    source: SourcePlan | None
    operators: Sequence[OperatorPlan]
    inputs: Sequence[InputPlan]
    outputs: Sequence[OutputPlan]

    @property
    def uids(self) -> list[str]:
        """The uids of its operators in the order of the chain."""
        return [*([self.source.uid] if self.source else []), *(operator.uid for operator in self.operators)]


@dataclass(frozen=True)
class SlotPlan:
    subtasks: Sequence[SubtaskPlan]
    mode: CheckpointingMode
