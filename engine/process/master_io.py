"""The queues of a JobMaster's I/O. The work of one queue runs in order; no queue waits for another one.

A store that hangs holds up publication, the history and the heartbeat, each in a thread of its own. The JobMaster still
kills slots then.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from engine.host.system import QueueOffload


class Queue(StrEnum):
    PUBLISH = "publish"
    """The claim, restores, publications and commits."""
    CLEAN = "clean"
    HISTORY = "history"
    HEARTBEAT = "heartbeat"
    KILL = "kill"
    TIDY = "tidy"
    SAVEPOINT = "savepoint"
    """Copies of snapshots, which take long."""
    ELSEWHERE = "elsewhere"
    """What a bucket knows of other machines (`engine/process/bucket_chores.py`)."""
    STATIC = "static"
    """Static tables, which Spark writes again when they are due (`engine/spark/inputs.py`)."""


_BESIDE = {"delete": Queue.CLEAN, "sweep": Queue.CLEAN, "savepoint": Queue.SAVEPOINT, "tidy": Queue.TIDY}


def queue_of(name: str) -> Queue:
    """Returns the queue of I/O that the JobMaster decided on: what may run beside publication has one of its own."""
    return _BESIDE.get(name, Queue.PUBLISH)


def master_offload(deliver: Callable[[Callable[[], None]], None]) -> QueueOffload:
    """Returns an offload with a thread for each queue."""
    return QueueOffload(deliver, threads=len(Queue))
