"""The identities that messages, channels and paths carry."""

from __future__ import annotations

from typing import NewType

import msgspec

Generation = NewType("Generation", int)
"""The number of one life of a job's JobMaster. Each fence in the epoch log raises it by one."""


class AttemptId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Names one deployment of all subtasks. Messages and channels carry it; those of older attempts are refused."""

    generation: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.attempt}"


class SubtaskId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Names one parallel copy of a vertex of the JobGraph."""

    vertex: str
    index: int

    def __str__(self) -> str:
        return f"{self.vertex}[{self.index}]"


class ChannelId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Names the channel from one subtask to another along one edge of the JobGraph."""

    edge: str
    sender: int
    receiver: int

    def __str__(self) -> str:
        return f"{self.edge}:{self.sender}->{self.receiver}"
