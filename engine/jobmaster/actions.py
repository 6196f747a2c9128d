"""The actions that a JobMaster decides on. `MasterProcess` carries them out on Spark, the simulator in tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from engine.jobmaster.events import AnyEvent
from engine.jobmaster.slot_pool import SlotInfo
from engine.protocol.failures import Raised
from engine.protocol.gate import GateQuestion
from engine.protocol.messages import MasterMessage


class Outcome(StrEnum):
    """FINISHED: all records are processed. STOPPED: by a person, behind a last epoch. CANCELLED: without one."""

    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"
    FENCED = "fenced"


DRAINED = "drained"
"""The reason of a job that was stopped with a drain begins so: it is over for good."""


def is_drained(reason: str) -> bool:
    """Says whether a job that ended for this reason is over for good."""
    return reason.startswith((DRAINED, f"it was {DRAINED}"))


def was_drained(epoch: int) -> str:
    """Says why a drained job does not go on, and what to do instead."""
    return (
        f"it was {DRAINED} in epoch {epoch}: its windows and timers have fired for good, and records that it read now "
        "would be late for them. To read on, start it under another --name: from a savepoint that was taken before the "
        "drain, with --from SAVEPOINT, or from the beginning"
    )


@dataclass(frozen=True)
class Send:
    session: str
    message: MasterMessage


@dataclass(frozen=True)
class KillSlot:
    """Ends a slot that hangs or was refused, so that Spark replaces it. Spark does not notice a hung task by itself.

    `silent` is True if nothing is heard from the slot: then its executor may be unreachable too, and Spark has to
    remove it. `heard` are the task attempts of the other slots that are heard from; their executors stay.
    """

    slot: SlotInfo
    why: str
    silent: bool = False
    heard: tuple[int, ...] = ()


@dataclass(frozen=True)
class StartSlots:
    """Has Spark start further tasks, under these numbers."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class ReleaseSlots:
    """The tasks of these numbers are not needed. Those that run were told to end; those that wait must not start."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class RunOffLoop:
    """Runs I/O: `work` on another thread, then `done` on the deciding thread, with the result or the error.

    `done` returns further actions. An exception that it raises ends the process, which must then be replaced.
    """

    name: str
    work: Callable[[], Any]
    done: Done


@dataclass(frozen=True)
class AskGate:
    """Asks the process of the gates. The answer comes back by `JobMaster.on_gate_answer`: late, twice, or never."""

    question: GateQuestion


@dataclass(frozen=True)
class EndGate:
    """Ends the process of the gates, which did not answer in time. The next question starts another."""

    why: str


@dataclass(frozen=True)
class Note:
    """An event for the job's history, its logs and the live view."""

    event: AnyEvent


@dataclass(frozen=True)
class Stop:
    """The job is over. `raised` is the error of its own code that ended it, if it was one."""

    outcome: Outcome
    reason: str
    raised: Raised | None = None


Action = Send | KillSlot | StartSlots | ReleaseSlots | RunOffLoop | AskGate | EndGate | Note | Stop
Done = Callable[[Any, BaseException | None, float], list[Action]]
