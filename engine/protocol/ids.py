"""Identities. Ids are types, so that a checkpoint can't be passed where an epoch is meant."""

from __future__ import annotations

from typing import NewType

import msgspec

Generation = NewType("Generation", int)
"""One life of a JobMaster. Grows with every fence record in the epoch log."""

CheckpointId = NewType("CheckpointId", int)
"""One try at a checkpoint. Never reused within a job; tries that fail leave gaps."""

Epoch = NewType("Epoch", int)
"""One published checkpoint. Dense: epoch n + 1 follows epoch n in the log."""


class AttemptId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One deployment of the whole job. Every message and channel carries it; older ones are refused."""

    generation: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.attempt}"


class SubtaskId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One parallel instance of a vertex of the JobGraph."""

    vertex: str
    index: int

    def __str__(self) -> str:
        return f"{self.vertex}[{self.index}]"


class ChannelId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """From one subtask to another along one edge of the JobGraph."""

    edge: str
    sender: int
    receiver: int

    def __str__(self) -> str:
        return f"{self.edge}:{self.sender}->{self.receiver}"
