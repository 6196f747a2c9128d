"""The plan of one slot: its subtasks, their operators, and the channels from and to them.

Invariant: a plan is the same in every attempt. Objects that hold state of one attempt (operators, source heads,
partitioners) are in it as functions that build them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from engine.protocol.config import IN_FLIGHT_TARGET_MS, CheckpointingMode
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
    """`named`: the author chose the uid, so the operator's state can be found by it."""

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
    """One edge that leads away from a subtask. `channels` maps each channel to the slot of its receiver.

    `side`: the (operator uid, tag name) of the side output that the edge carries; None for the main output.
    """

    edge: str
    channels: Mapping[ChannelId, int]
    schema: pa.Schema
    partitioner: Callable[[], Partitioner]
    side: tuple[str, str] | None


@dataclass(frozen=True)
class SubtaskPlan:
    """The plan of one subtask, which has either a source or inputs. `row_lane`: an operator runs Python per record."""

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
        """The uids of the source and the operators, in the order of the chain."""
        return [*([self.source.uid] if self.source else []), *(operator.uid for operator in self.operators)]


@dataclass(frozen=True)
class SlotPlan:
    subtasks: Sequence[SubtaskPlan]
    mode: CheckpointingMode
    in_flight_target_ms: float = IN_FLIGHT_TARGET_MS
