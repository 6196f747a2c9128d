"""The reasons why a checkpoint or an attempt failed, each with its text; and whose fault an error is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from engine.protocol.ids import SubtaskId


class Fault(Enum):
    """Says whose fault an error is. It decides whether another attempt may help."""

    JOB = "job"
    """The job's fault: its code, its schema, its state, or how it was started."""

    OUTSIDE = "outside"
    """The fault of something outside: machines, networks, stores, other processes."""

    WEIR = "weir"
    """A defect of Weir itself."""


class Raised(msgspec.Struct, frozen=True):
    """An error of the job's own code, as it is shown everywhere.

    `line` is the author's line that raised it (`file:line`), `record` the record that it was about, and `traceback`
    begins with the author's first frame. A field that is not known is empty.
    """

    type: str
    message: str
    line: str = ""
    position: str = ""
    record: str = ""
    traceback: str = ""


class CheckpointFailure(Enum):
    """The reason why a checkpoint was aborted. `counts` is True if it counts towards `tolerable_failed` (D4)."""

    EXPIRED = ("expired", "not all subtasks acknowledged in time", True)
    DECLINED = ("declined", "a subtask declined it", True)
    WRITE_FAILED = ("write_failed", "a subtask could not write its state", True)
    FINALIZE_FAILED = ("finalize_failed", "the manifest or the epoch record could not be written", True)
    LEDGER_MISMATCH = ("ledger_mismatch", "the ledger's equations do not hold", True)
    SUBSUMED = ("subsumed", "a newer checkpoint completed first", False)
    ATTEMPT_ENDED = ("attempt_ended", "the job's attempt ended before it was complete", False)

    def __init__(self, code: str, text: str, counts: bool) -> None:
        self.code = code
        self.text = text
        self.counts = counts


class AckOutcome(Enum):
    """The outcome of an acknowledgement. Races are expected, so they are outcomes, not exceptions."""

    SUCCESS = "success"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"
    DISCARDED = "discarded"


class AttemptFailure(Enum):
    """The reason why an attempt failed."""

    SLOT_LOST = ("slot_lost", "a slot's process ended or its connection broke")
    SLOT_SILENT = ("slot_silent", "a slot sent no heartbeat in time")
    SLOT_HUNG = ("slot_hung", "a slot's task thread hung")
    IO_HUNG = ("io_hung", "a slot's I/O hung")
    SLOT_MEMORY = ("slot_memory", "a slot used more memory than its budget")
    USER_CODE = ("user_code", "a function of the job raised")
    UNFIT = ("unfit", "the job does not fit what it reads or keeps")
    RUNTIME = ("runtime", "a subtask failed")
    DEPLOY_TIMEOUT = ("deploy_timeout", "not all slots were deployed in time")
    CHECKPOINTS_FAILED = ("checkpoints_failed", "more checkpoints failed than `tolerable_failed` allows")
    COMMIT_FAILED = ("commit_failed", "a sink could not commit a completed epoch")
    STOP_FAILED = ("stop_failed", "the job could not be stopped behind a last epoch, and goes on")

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        self.text = text


@dataclass(frozen=True)
class FailedAt:
    """The place where an attempt failed, as far as it is known."""

    uid: str = ""
    subtask: SubtaskId | None = None
    slot: int | None = None
    raised: Raised | None = None


@dataclass(frozen=True)
class Failed:
    """What ended an attempt: what failed, where, and whose fault it is."""

    failure: AttemptFailure
    detail: str
    at: FailedAt = FailedAt()
    fault: Fault = Fault.OUTSIDE
