"""What a person or a schedule asks for: a savepoint, and whether the job stops behind it (D5, D6)."""

from __future__ import annotations

from enum import Enum

import msgspec


class Stopping(Enum):
    """What becomes of the job after the savepoint."""

    NO = "no"
    """The job goes on. The savepoint commits nothing: output that waits for a commit goes with the next checkpoint."""

    SUSPEND = "suspend"
    """Sources stop behind the barrier. The snapshot is an epoch, and is committed before the job ends."""

    DRAIN = "drain"
    """Sources end: all windows and timers fire before the snapshot, which is the job's final epoch."""


class SavepointRequest(msgspec.Struct, frozen=True):
    """`folder`: the address of the savepoint; empty: a folder of this name in the job's part of the store."""

    name: str
    folder: str = ""
    stopping: Stopping = Stopping.NO
