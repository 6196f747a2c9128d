"""What a person or a schedule asks for: a savepoint, or that the job stops behind its last epoch (D5, D6)."""

from __future__ import annotations

from enum import Enum

import msgspec


class Stopping(Enum):
    """What becomes of the job after a checkpoint."""

    NO = "no"
    """The job goes on."""

    SUSPEND = "suspend"
    """Sources stop behind the barrier. The snapshot is an epoch, and is committed before the job ends."""

    DRAIN = "drain"
    """Sources end: all windows and timers fire before the snapshot, which is the job's final epoch."""


class SavepointRequest(msgspec.Struct, frozen=True):
    """`folder`: the address of the savepoint; empty: a folder of this name in the job's part of the store."""

    name: str
    folder: str = ""


class StopRequest(msgspec.Struct, frozen=True):
    """`drain`: sources end as if they had read everything. `savepoint`: the last epoch is also made a savepoint."""

    drain: bool = False
    savepoint: SavepointRequest | None = None

    @property
    def stopping(self) -> Stopping:
        return Stopping.DRAIN if self.drain else Stopping.SUSPEND
