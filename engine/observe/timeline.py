"""`Timeline` puts together the checkpoints, restarts and rescales of a job from the events of its history.

Invariants: the same events give the same timeline, in the JobMaster as they happen and in a reader later; an event
that a JobMaster notes after it was replaced changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from engine.jobmaster.events import (
    Aborted,
    AnyEvent,
    AttemptFailed,
    Claimed,
    Completed,
    Deploying,
    EpochHeld,
    OperatorFigures,
    Published,
    Running,
    Stopped,
    SubtaskFigures,
    Triggered,
)
from engine.jobmaster.figures import TIMES
from engine.jobmaster.status import CheckpointStatus, CheckpointSummary, Past
from engine.observe.rescales import RescaleRecord, Rescales
from engine.protocol.failures import AttemptFailure, CheckpointFailure, Raised

EVENTS = 500
CHECKPOINTS = 500
RESTARTS = 500
"""The numbers of each that are kept in memory, and shown."""

JOBMASTER_LOST = "jobmaster_lost"


class VertexFigures(msgspec.Struct, frozen=True):
    """A checkpoint in one vertex: the longest times of its subtasks, the sum of their bytes, then each subtask."""

    vertex: str
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    async_ms: float
    state_bytes: int
    operators: dict[str, OperatorFigures]
    subtasks: list[SubtaskFigures]


class CheckpointDetail(CheckpointSummary, kw_only=True):
    """One checkpoint with times and bytes by vertex, operator and subtask, and the job's totals at its barrier."""

    vertices: list[VertexFigures]
    ledger: dict[str, int]


class CheckpointRecord(CheckpointSummary, kw_only=True):
    ledger: dict[str, int] = msgspec.field(default_factory=dict)
    subtasks: list[SubtaskFigures] = msgspec.field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.status in (CheckpointStatus.COMPLETED, CheckpointStatus.ABORTED)

    def summary(self) -> CheckpointSummary:
        return CheckpointSummary(**self._summary())

    def with_parts(self) -> CheckpointDetail:
        return CheckpointDetail(**self._summary(), vertices=_by_vertex(self.subtasks), ledger=self.ledger)

    def _summary(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in CheckpointSummary.__struct_fields__}


class RestartRecord(msgspec.Struct):
    """The end of `attempt`. `recovery_ms` later the next attempt ran; None: no attempt has run since."""

    at_ms: int
    attempt: str
    cause: str
    text: str
    detail: str
    uid: str = ""
    vertex: str = ""
    subtask: int | None = None
    slot: int | None = None
    recovery_ms: int | None = None
    raised: Raised | None = None


class Timeline:
    def __init__(self, events: Iterable[AnyEvent] = ()) -> None:
        self.events: deque[AnyEvent] = deque(maxlen=EVENTS)
        self.restarts_since_start = 0
        self.started_at_ms: int | None = None
        self.ended_at_ms: int | None = None
        self._checkpoints: deque[CheckpointRecord] = deque(maxlen=CHECKPOINTS)
        self._restarts: deque[RestartRecord] = deque(maxlen=RESTARTS)
        self._down: list[RestartRecord] = []
        self._rescales = Rescales()
        self._generation = 0
        self._attempt = ""
        for event in events:
            self.add(event)

    # --- queries, newest first ---

    @property
    def checkpoints(self) -> list[CheckpointRecord]:
        return list(reversed(self._checkpoints))

    @property
    def restarts(self) -> list[RestartRecord]:
        return list(reversed(self._restarts))

    @property
    def rescales(self) -> list[RescaleRecord]:
        return self._rescales.newest_first

    @property
    def last_completed(self) -> CheckpointRecord | None:
        return next((c for c in reversed(self._checkpoints) if c.status is CheckpointStatus.COMPLETED), None)

    @property
    def past(self) -> Past:
        last = self.last_completed
        summary = last.summary() if last else None
        return Past(self.started_at_ms, self.restarts_since_start, summary, self._rescales.figures)

    def checkpoint(self, number: int) -> CheckpointRecord | None:
        """Returns the newest checkpoint of this number: a new JobMaster may use a number of its predecessor again."""
        return next((c for c in reversed(self._checkpoints) if c.checkpoint == number), None)

    # --- events ---

    def add(self, event: AnyEvent) -> None:
        self.events.append(event)
        if event.generation < self._generation:
            return
        self._rescales.add(event)
        match event:
            case Claimed():
                self._claimed(event)
            case Deploying():
                self._attempt = event.attempt
                ended = CheckpointFailure.ATTEMPT_ENDED
                self._settle(ended.code, ended.text, event.at_ms)
                for record in self._open(CheckpointStatus.PUBLISHED):  # the restore has committed it
                    _end(record, CheckpointStatus.COMPLETED, event.at_ms)
            case Running():
                for restart in self._down:
                    restart.recovery_ms = event.at_ms - restart.at_ms
                self._down = []
            case AttemptFailed():
                text = next((f.text for f in AttemptFailure if f.code == event.cause), "")
                self._restarted(_restart_of(event, text))
            case Stopped():
                self.ended_at_ms = event.at_ms
                self.restarts_since_start -= len(self._down)  # failures that no attempt ran after
                self._down = []
                self._settle(CheckpointFailure.ATTEMPT_ENDED.code, "the job ended", event.at_ms)
            case Triggered():
                self._begin(event.checkpoint, event.attempt, event.at_ms)
            case EpochHeld():
                record = self._record(event.checkpoint, event.at_ms)
                record.status, record.why = CheckpointStatus.HELD, "gate"
                record.detail = f"sink {event.sink!r}: {event.why}"
            case Published():
                record = self._record(event.checkpoint, event.at_ms)
                record.epoch = event.epoch
                record.status, record.why, record.detail = CheckpointStatus.PUBLISHED, "", ""
            case Completed():
                self._completed(event)
            case Aborted():
                record = self._record(event.checkpoint, event.at_ms)
                record.why, record.detail = event.why, event.detail
                _end(record, CheckpointStatus.ABORTED, event.at_ms)

    def _claimed(self, event: Claimed) -> None:
        if self._generation and self.ended_at_ms is None:
            lost = f"the JobMaster of generation {self._generation} ended without an outcome; another took over"
            at_ms = event.last_seen_ms or event.at_ms
            self._restarted(RestartRecord(at_ms, self._attempt, JOBMASTER_LOST, lost, event.death))
            self._settle(JOBMASTER_LOST, lost, event.at_ms)
        else:
            self.restarts_since_start = 0
            self.started_at_ms = event.at_ms
        self.ended_at_ms = None
        self._generation = event.generation

    def _restarted(self, restart: RestartRecord) -> None:
        self._restarts.append(restart)
        self._down.append(restart)
        self.restarts_since_start += 1

    def _completed(self, event: Completed) -> None:
        began_ms = int(event.at_ms - event.duration_ms)  # used if its first event is no longer kept
        record = self._record(event.checkpoint, began_ms, event.attempt)
        for name in ("epoch", "state_bytes", *TIMES, "final", "ledger", "subtasks"):
            setattr(record, name, getattr(event, name))
        _end(record, CheckpointStatus.COMPLETED, event.at_ms, event.duration_ms)

    def _begin(self, checkpoint: int, attempt: str, at_ms: int) -> CheckpointRecord:
        record = CheckpointRecord(checkpoint=checkpoint, attempt=attempt, triggered_at_ms=at_ms)
        self._checkpoints.append(record)
        return record

    def _record(self, checkpoint: int, began_ms: int, attempt: str | None = None) -> CheckpointRecord:
        """Returns the open record of a checkpoint, or a new one if its first event is no longer kept."""
        record = self.checkpoint(checkpoint)
        if record is None or record.over:
            return self._begin(checkpoint, self._attempt if attempt is None else attempt, began_ms)
        return record

    def _settle(self, why: str, detail: str, at_ms: int) -> None:
        """Aborts the checkpoints that were only triggered, or held: no JobMaster will complete them."""
        for record in self._open(CheckpointStatus.TRIGGERED) + self._open(CheckpointStatus.HELD):
            record.why, record.detail = why, detail
            _end(record, CheckpointStatus.ABORTED, at_ms)

    def _open(self, status: CheckpointStatus) -> list[CheckpointRecord]:
        return [record for record in self._checkpoints if record.status is status]


def _end(record: CheckpointRecord, status: CheckpointStatus, at_ms: int, duration_ms: float | None = None) -> None:
    record.status = status
    record.ended_at_ms = at_ms
    record.duration_ms = duration_ms if duration_ms is not None else at_ms - record.triggered_at_ms


def _restart_of(event: AttemptFailed, text: str) -> RestartRecord:
    return RestartRecord(
        event.at_ms,
        event.attempt,
        event.cause,
        text,
        event.detail,
        event.uid,
        event.vertex,
        event.subtask,
        event.slot,
        raised=event.raised,
    )


def _by_vertex(subtasks: list[SubtaskFigures]) -> list[VertexFigures]:
    found: dict[str, list[SubtaskFigures]] = {}
    for subtask in subtasks:
        found.setdefault(subtask.vertex, []).append(subtask)
    return [_vertex(vertex, members) for vertex, members in found.items()]


def _vertex(vertex: str, members: list[SubtaskFigures]) -> VertexFigures:
    uids = dict.fromkeys(uid for member in members for uid in member.operators)
    return VertexFigures(
        vertex,
        max(member.start_delay_ms for member in members),
        max(member.alignment_ms for member in members),
        max(member.sync_ms for member in members),
        max(member.async_ms for member in members),
        sum(member.state_bytes for member in members),
        {uid: _operator([m.operators[uid] for m in members if uid in m.operators]) for uid in uids},
        members,
    )


def _operator(parts: list[OperatorFigures]) -> OperatorFigures:
    return OperatorFigures(
        max(part.sync_ms for part in parts),
        max(part.async_ms for part in parts),
        sum(part.state_bytes for part in parts),
    )
