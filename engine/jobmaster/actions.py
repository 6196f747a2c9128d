"""What a JobMaster may decide to do. A thin shell carries it out: on Spark `master.py`, or the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from engine.jobmaster.events import AnyEvent
from engine.jobmaster.slot_pool import SlotInfo
from engine.protocol.messages import MasterMessage


class Outcome(Enum):
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    FENCED = "fenced"


@dataclass(frozen=True)
class Send:
    session: str
    message: MasterMessage


@dataclass(frozen=True)
class KillSlot:
    """Spark never notices a hung task: end it, so that it is replaced."""

    slot: SlotInfo
    why: str


@dataclass(frozen=True)
class RunOffLoop:
    """I/O: run `work` elsewhere, then `done` on the loop with its result or error; it returns further actions.

    What `done` raises ends the process: it must be replaced.
    """

    name: str
    work: Callable[[], Any]
    done: Done


@dataclass(frozen=True)
class Note:
    """An event for the job's history, its logs and the live view."""

    event: AnyEvent


@dataclass(frozen=True)
class Stop:
    outcome: Outcome
    reason: str


Action = Send | KillSlot | RunOffLoop | Note | Stop
Done = Callable[[Any, BaseException | None, float], list[Action]]
