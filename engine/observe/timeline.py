"""`Timeline`: the checkpoints and restarts of a job, put together from the events of its history.

Invariant: the same events give the same timeline, in the JobMaster as they happen and for whoever reads them later;
what a JobMaster says after it was replaced changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec

from engine.jobmaster.figures import TIMES
from engine.protocol.failures import AttemptFailure, CheckpointFailure

EVENTS = 500
CHECKPOINTS = 500
RESTARTS = 500
"""How many of each are kept in memory, and shown."""

JOBMASTER_LOST = "jobmaster_lost"


class CheckpointStatus(Enum):
    """PUBLISHED: its epoch exists, and is being committed, or will be by whoever restores it."""

    TRIGGERED = "triggered"
    PUBLISHED = "published"
    COMPLETED = "completed"
    ABORTED = "aborted"


class CheckpointRecord(msgspec.Struct):
    checkpoint: int
    attempt: str
    triggered_at_ms: int
    status: CheckpointStatus = CheckpointStatus.TRIGGERED
    ended_at_ms: int | None = None
    duration_ms: float | None = None
    epoch: int | None = None
    state_bytes: int | None = None
    start_delay_ms: float | None = None
    alignment_ms: float | None = None
    sync_ms: float | None = None
    async_ms: float | None = None
    final: bool = False
    why: str = ""
    detail: str = ""
    ledger: dict[str, int] = {}
    subtasks: list[dict[str, Any]] = []

    @property
    def over(self) -> bool:
        return self.status in (CheckpointStatus.COMPLETED, CheckpointStatus.ABORTED)

    def summary(self) -> dict[str, Any]:
        result: dict[str, Any] = msgspec.to_builtins(self)
        del result["ledger"], result["subtasks"]
        return result

    def as_json(self) -> dict[str, Any]:
        """With what it took by vertex, operator and subtask."""
        return {**self.summary(), "vertices": _by_vertex(self.subtasks), "ledger": self.ledger}


class RestartRecord(msgspec.Struct):
    """`attempt` ended; `recovery_ms` later the next one ran. None: it does not yet, or never did."""

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

    def as_json(self) -> dict[str, Any]:
        result: dict[str, Any] = msgspec.to_builtins(self)
        return result


class Timeline:
    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        self.events: deque[Mapping[str, Any]] = deque(maxlen=EVENTS)
        self.restarts_since_start = 0
        self.started_at_ms: int | None = None
        self.ended_at_ms: int | None = None
        self._checkpoints: deque[CheckpointRecord] = deque(maxlen=CHECKPOINTS)
        self._restarts: deque[RestartRecord] = deque(maxlen=RESTARTS)
        self._down: list[RestartRecord] = []
        self._generation = 0
        self._attempt = ""
        for event in events:
            self.add(event)

    # --- what is asked, newest first ---

    @property
    def checkpoints(self) -> list[CheckpointRecord]:
        return list(reversed(self._checkpoints))

    @property
    def restarts(self) -> list[RestartRecord]:
        return list(reversed(self._restarts))

    @property
    def last_completed(self) -> CheckpointRecord | None:
        return next((c for c in reversed(self._checkpoints) if c.status is CheckpointStatus.COMPLETED), None)

    def checkpoint(self, number: int) -> CheckpointRecord | None:
        """A JobMaster that is replaced may leave a number behind that its successor uses again: the last one counts."""
        return next((c for c in reversed(self._checkpoints) if c.checkpoint == number), None)

    # --- what happened ---

    def add(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)
        if event.get("generation", self._generation) < self._generation:
            return
        at_ms = event["at_ms"]
        match event["kind"]:
            case "claimed":
                self._claimed(event)
            case "deploying":
                self._attempt = event["attempt"]
                self._settle(CheckpointFailure.ATTEMPT_ENDED.code, CheckpointFailure.ATTEMPT_ENDED.text, at_ms)
                for record in self._open(CheckpointStatus.PUBLISHED):  # restoring has committed it
                    _end(record, CheckpointStatus.COMPLETED, at_ms)
            case "running":
                for restart in self._down:
                    restart.recovery_ms = at_ms - restart.at_ms
                self._down = []
            case "attempt_failed":
                failure = next((f.text for f in AttemptFailure if f.code == event["cause"]), "")
                self._restarted({**event, "text": failure})
            case "stopped":
                self.ended_at_ms = at_ms
                self.restarts_since_start -= len(self._down)  # these were failures, and the last
                self._down = []
                self._settle(CheckpointFailure.ATTEMPT_ENDED.code, "the job ended", at_ms)
            case "triggered" | "published" | "completed" | "aborted":
                self._checkpoint_event(event)

    def _claimed(self, event: Mapping[str, Any]) -> None:
        if self._generation and self.ended_at_ms is None:
            lost = f"the JobMaster of generation {self._generation} ended without a word; another took over"
            at_ms = event.get("last_seen_ms") or event["at_ms"]
            self._restarted(
                {"at_ms": at_ms, "attempt": self._attempt, "cause": JOBMASTER_LOST, "text": lost, "detail": ""}
            )
            self._settle(JOBMASTER_LOST, lost, event["at_ms"])
        else:
            self.restarts_since_start = 0
            self.started_at_ms = event["at_ms"]
        self.ended_at_ms = None
        self._generation = event["generation"]

    def _restarted(self, event: Mapping[str, Any]) -> None:
        restart = msgspec.convert(event, RestartRecord)
        self._restarts.append(restart)
        self._down.append(restart)
        self.restarts_since_start += 1

    def _checkpoint_event(self, event: Mapping[str, Any]) -> None:
        number, at_ms = event["checkpoint"], event["at_ms"]
        record = self.checkpoint(number)
        if event["kind"] == "triggered" or record is None or record.over:
            began_ms = int(at_ms - event.get("duration_ms", 0))  # its first event may be too old to be kept
            record = CheckpointRecord(number, event.get("attempt", self._attempt), began_ms)
            self._checkpoints.append(record)
        for name in ("epoch", "state_bytes", *TIMES, "final", "why", "detail", "ledger", "subtasks"):
            if name in event:
                setattr(record, name, event[name])
        match event["kind"]:
            case "published":
                record.status = CheckpointStatus.PUBLISHED
            case "completed":
                _end(record, CheckpointStatus.COMPLETED, at_ms, event["duration_ms"])
            case "aborted":
                _end(record, CheckpointStatus.ABORTED, at_ms)

    def _settle(self, why: str, detail: str, at_ms: int) -> None:
        """Nobody will complete what was only triggered."""
        for record in self._open(CheckpointStatus.TRIGGERED):
            record.why, record.detail = why, detail
            _end(record, CheckpointStatus.ABORTED, at_ms)

    def _open(self, status: CheckpointStatus) -> list[CheckpointRecord]:
        return [record for record in self._checkpoints if record.status is status]


def _end(record: CheckpointRecord, status: CheckpointStatus, at_ms: int, duration_ms: float | None = None) -> None:
    record.status = status
    record.ended_at_ms = at_ms
    record.duration_ms = duration_ms if duration_ms is not None else at_ms - record.triggered_at_ms


def _by_vertex(subtasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The longest time of all subtasks, and their bytes together, before each of them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for subtask in subtasks:
        found.setdefault(subtask["vertex"], []).append(subtask)
    return [
        {
            "vertex": vertex,
            **_totals(members, TIMES),
            "operators": {
                uid: _totals([m["operators"][uid] for m in members if uid in m["operators"]], ("sync_ms", "async_ms"))
                for uid in dict.fromkeys(uid for member in members for uid in member["operators"])
            },
            "subtasks": [{name: value for name, value in member.items() if name != "vertex"} for member in members],
        }
        for vertex, members in found.items()
    ]


def _totals(members: list[dict[str, Any]], times: tuple[str, ...]) -> dict[str, Any]:
    longest = {name: max(member[name] for member in members) for name in times}
    return {**longest, "state_bytes": sum(member["state_bytes"] for member in members)}
