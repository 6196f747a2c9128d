"""The events of a job. A JobMaster notes an event; the history keeps it, the timeline and HTTP show it.

An event is one JSON object: `kind` names its class, `at_ms` and `generation` say when and under which JobMaster it
happened. The process that carries out the note fills in these two.
"""

from __future__ import annotations

import re

import msgspec

from engine.protocol.failures import Raised


def _kind(name: str) -> str:
    """Returns the name of an event's class as it stands in JSON: `AttemptFailed` is `attempt_failed`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Event(msgspec.Struct, frozen=True, tag_field="kind", tag=_kind, kw_only=True):
    at_ms: int = 0
    generation: int = 0

    @property
    def kind(self) -> str:
        return _kind(type(self).__name__)


# --- the JobMaster takes the job over ---


class Claimed(Event, frozen=True):
    """A JobMaster owns the job now. `last_seen_ms` is the time of the previous JobMaster's last heartbeat, `death` the
    reason of its death as its supervisor saw it."""

    last_seen_ms: int | None = None
    death: str = ""


class ClaimFailed(Event, frozen=True):
    """The store did not answer the claim; the JobMaster tries again."""

    error: str


class ClaimLost(Event, frozen=True):
    """Another process was faster, or the outcome is unknown; the JobMaster tries again."""


# --- an attempt begins and ends ---


class SlotsMissing(Event, frozen=True):
    """Too few slots have registered after a time. The JobMaster goes on waiting. `why`: the last one was refused."""

    registered: int
    needed: int
    waited_ms: float
    why: str = ""


class SlotRegistered(Event, frozen=True):
    pid: int
    registered: int


class SlotRefused(Event, frozen=True):
    """A slot does not see the store, or can't run the job's code. It is killed after a while; Spark starts another."""

    pid: int
    why: str


class StateDropped(Event, frozen=True):
    """The job goes on without this operator's state, positions or output, because the user allowed it."""

    uid: str
    what: str


class Deploying(Event, frozen=True):
    """Slots build the subtasks of this attempt from the state of `epoch`, or without state if it is None."""

    attempt: str
    epoch: int | None


class Running(Event, frozen=True):
    attempt: str


class SlowStep(Event, frozen=True):
    """The task thread of a slot has been in one step for long. `stack` says where; the slot is not killed yet."""

    slot: int | None
    pid: int
    uid: str
    subtask: str
    for_ms: float
    stack: str


class SlotKilled(Event, frozen=True):
    """The JobMaster killed a slot that took part in no attempt. One that did fails its attempt, which says why."""

    pid: int
    why: str


class TaskFailed(Event, frozen=True):
    """A subtask could not go on. `detail` is the whole traceback, `raised` the part that is the author's."""

    where: str
    error: str
    detail: str
    raised: Raised | None = None


class AttemptFailed(Event, frozen=True):
    """The attempt is over. `uid`, `vertex`, `subtask` and `slot` say where it failed, as far as that is known."""

    attempt: str
    cause: str
    detail: str
    uid: str = ""
    vertex: str = ""
    subtask: int | None = None
    slot: int | None = None
    raised: Raised | None = None


class Stopped(Event, frozen=True):
    """The job is over. `outcome` is one of `actions.Outcome`."""

    outcome: str
    reason: str
    raised: Raised | None = None


# --- a checkpoint ---


class Triggered(Event, frozen=True):
    checkpoint: int
    attempt: str


class OddAcknowledgement(Event, frozen=True):
    """An acknowledgement that was repeated, came late or belongs to no known checkpoint."""

    checkpoint: int
    subtask: str
    outcome: str


class Aborted(Event, frozen=True):
    """`why` is the code of a `CheckpointFailure`."""

    checkpoint: int
    why: str
    detail: str


class PublishUnknown(Event, frozen=True):
    """The store did not say whether the epoch record exists; the JobMaster creates the same record again."""

    checkpoint: int


class Published(Event, frozen=True):
    """The epoch record exists."""

    checkpoint: int
    epoch: int


class OperatorFigures(msgspec.Struct, frozen=True):
    """One operator's part of a subtask's snapshot."""

    sync_ms: float
    async_ms: float
    state_bytes: int


class SubtaskFigures(msgspec.Struct, frozen=True):
    """The time and the bytes of a checkpoint in one subtask, and in each of its operators by uid."""

    vertex: str
    subtask: int
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    async_ms: float
    state_bytes: int
    operators: dict[str, OperatorFigures]


class Completed(Event, frozen=True):
    """The epoch is committed. Times are the longest of all subtasks', bytes their sum, `ledger` the job's totals."""

    checkpoint: int
    epoch: int
    attempt: str
    completed_at_ms: int
    duration_ms: float
    state_bytes: int
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    async_ms: float
    final: bool
    ledger: dict[str, int]
    subtasks: list[SubtaskFigures]


# --- savepoints and stops ---


class SavepointTriggered(Event, frozen=True):
    """Somebody asked for a savepoint. `stopping` is the value of a `Stopping`: what becomes of the job behind it."""

    name: str
    place: str
    checkpoint: int
    stopping: str


class SavepointTaken(Event, frozen=True):
    """Every subtask has acknowledged the snapshot; the savepoint of its `state_bytes` is being made."""

    name: str
    place: str
    checkpoint: int
    state_bytes: int


class SavepointCompleted(Event, frozen=True):
    """The savepoint exists. `epoch` is the newest epoch of the job, or the savepoint itself if the job stops."""

    name: str
    place: str
    checkpoint: int
    epoch: int
    state_bytes: int
    duration_ms: float


class SavepointFailed(Event, frozen=True):
    """There is no savepoint. `reason` says why, and what exists instead."""

    name: str
    place: str
    reason: str


class Stopping(Event, frozen=True):
    """Somebody asked the job to stop behind a last epoch. `savepoint` is the name of its savepoint, if there is one."""

    drain: bool
    savepoint: str


class StopFailed(Event, frozen=True):
    """The job was not stopped, and goes on. `reason` says why, and what exists."""

    reason: str


# --- the commit gate ---


class EpochHeld(Event, frozen=True):
    """The gate of a sink refuses rows of an epoch, or said nothing in time: the epoch waits for a person."""

    checkpoint: int
    epoch: int
    sink: str
    gate: str
    why: str
    rows: int
    refused: int


class GateRuled(Event, frozen=True):
    """Rows that did not simply pass are decided. `decision` is a `Decision`."""

    checkpoint: int
    epoch: int
    sink: str
    decision: str
    rows: int
    refused: int
    why: str


class GateFailed(Event, frozen=True):
    """A gate could not say anything about the rows. It is asked again until its time is over."""

    sink: str
    error: str


class GateAnswerIgnored(Event, frozen=True):
    """An answer came late, twice, or about an epoch that was given up."""

    number: int


# --- a rescale ---


class RescaleStarted(Event, frozen=True):
    """The job is to run at another parallelism. `before` and `after` hold that of each operator, by uid.

    It waits for further slots, if it needs some, while the job goes on.
    """

    rescale: str
    before: dict[str, int]
    after: dict[str, int]
    slots_before: int
    slots_after: int


class RescaleCheckpoint(Event, frozen=True):
    """The slots are there. The job will go on from this checkpoint."""

    rescale: str
    checkpoint: int


class RescaleSwitching(Event, frozen=True):
    """The checkpoint is `epoch`. The job leaves its attempt, to be deployed from there at the new parallelism."""

    rescale: str
    epoch: int


class Rescaled(Event, frozen=True):
    """The job runs at the new parallelism. The digests of its state before and after are the same.

    `pause_ms` is the time in which no record was processed; None: none has come since.
    """

    rescale: str
    epoch: int
    pause_ms: float | None
    digest_before: str
    digest_after: str
    rows: int


class RescaleFailed(Event, frozen=True):
    """The job goes on at the parallelism that it had."""

    rescale: str
    why: str
    digest_before: str = ""
    digest_after: str = ""


# --- beside checkpoints ---


class Refreshed(Event, frozen=True):
    """A static table was read again. If that failed, `error` says why, and the last version stays in use."""

    uid: str
    version: int | None
    error: str | None


class Tidied(Event, frozen=True):
    """Files of a table were folded into fewer, or old ones were deleted."""

    uid: str
    folded: int
    into: int
    written_bytes: int
    deleted: int


class NotTidied(Event, frozen=True):
    """Output could not be folded or deleted in the background. Nothing is lost; it is tried again."""

    uid: str
    error: str


AnyEvent = (
    Claimed
    | ClaimFailed
    | ClaimLost
    | SlotsMissing
    | SlotRegistered
    | SlotRefused
    | StateDropped
    | Deploying
    | Running
    | SlowStep
    | SlotKilled
    | TaskFailed
    | AttemptFailed
    | Stopped
    | Triggered
    | OddAcknowledgement
    | Aborted
    | PublishUnknown
    | Published
    | Completed
    | SavepointTriggered
    | SavepointTaken
    | SavepointCompleted
    | SavepointFailed
    | Stopping
    | StopFailed
    | EpochHeld
    | GateRuled
    | GateFailed
    | GateAnswerIgnored
    | RescaleStarted
    | RescaleCheckpoint
    | RescaleSwitching
    | Rescaled
    | RescaleFailed
    | Refreshed
    | Tidied
    | NotTidied
)


def stamped(event: AnyEvent, at_ms: int, generation: int) -> AnyEvent:
    """Returns the event with its time and the generation of the JobMaster that noted it."""
    return msgspec.structs.replace(event, at_ms=at_ms, generation=generation)


_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def decode(line: bytes) -> AnyEvent | None:
    """Returns the event in a line of the history, or None if the line is cut short or no event of this version."""
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return None
