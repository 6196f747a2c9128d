"""The rescales of a job, put together from the events of its history."""

from __future__ import annotations

from collections import deque
from enum import StrEnum

import msgspec

from engine.jobmaster.events import (
    AnyEvent,
    Claimed,
    RescaleCheckpoint,
    Rescaled,
    RescaleFailed,
    RescaleStarted,
    RescaleSwitching,
    Stopped,
)
from engine.jobmaster.status import RescaleFigures

RESCALES = 100
"""The number of rescales that are kept in memory, and shown."""


class RescaleState(StrEnum):
    """INTERRUPTED: the JobMaster died, or the job ended. A later JobMaster begins at the parallelism that was saved."""

    SLOTS = "waiting for slots"
    CHECKPOINT = "taking a checkpoint"
    SWITCHING = "switching"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def over(self) -> bool:
        return self in (RescaleState.COMPLETED, RescaleState.FAILED, RescaleState.INTERRUPTED)


class RescaleRecord(msgspec.Struct, kw_only=True):
    """One rescale. `from` and `to` hold the parallelism of each operator by uid.

    In `pause_ms` no record was processed; None: not known yet, or no record has come since. `digest_before` and
    `digest_after` cover `rows` rows of state: all that each of one subtask alone holds.
    """

    rescale: str
    state: RescaleState
    started_at_ms: int
    ended_at_ms: int | None = None
    before: dict[str, int] = msgspec.field(name="from")
    after: dict[str, int] = msgspec.field(name="to")
    slots_before: int
    slots_after: int
    checkpoint: int | None = None
    epoch: int | None = None
    pause_ms: float | None = None
    digest_before: str = ""
    digest_after: str = ""
    rows: int | None = None
    reason: str = ""


class Rescales:
    def __init__(self) -> None:
        self._records: deque[RescaleRecord] = deque(maxlen=RESCALES)
        self._completed = self._failed = 0

    @property
    def newest_first(self) -> list[RescaleRecord]:
        return list(reversed(self._records))

    @property
    def figures(self) -> RescaleFigures:
        paused = next((record.pause_ms for record in reversed(self._records) if record.pause_ms is not None), None)
        doing = self._open.state.value if self._open is not None else ""
        return RescaleFigures(self._completed, self._failed, paused, doing)

    def add(self, event: AnyEvent) -> None:
        match event:
            case RescaleStarted():
                self._begin(event)
            case RescaleCheckpoint():
                self._goes_on(event.rescale, RescaleState.CHECKPOINT, checkpoint=event.checkpoint)
            case RescaleSwitching():
                self._goes_on(event.rescale, RescaleState.SWITCHING, epoch=event.epoch)
            case Rescaled():
                self._completed += 1
                proof = {name: getattr(event, name) for name in ("pause_ms", "digest_before", "digest_after", "rows")}
                self._goes_on(event.rescale, RescaleState.COMPLETED, ended_at_ms=event.at_ms, **proof)
            case RescaleFailed():
                self._failed += 1
                digests = {"digest_before": event.digest_before, "digest_after": event.digest_after}
                self._goes_on(event.rescale, RescaleState.FAILED, ended_at_ms=event.at_ms, reason=event.why, **digests)
            case Claimed() | Stopped():
                if self._open is not None:
                    why = "the JobMaster died" if isinstance(event, Claimed) else f"the job ended: {event.reason}"
                    state = RescaleState.INTERRUPTED
                    self._goes_on(self._open.rescale, state, ended_at_ms=event.at_ms, reason=why)

    @property
    def _open(self) -> RescaleRecord | None:
        last = self._records[-1] if self._records else None
        return last if last is not None and not last.state.over else None

    def _begin(self, event: RescaleStarted) -> None:
        self._records.append(
            RescaleRecord(
                rescale=event.rescale,
                state=RescaleState.SLOTS,
                started_at_ms=event.at_ms,
                before=event.before,
                after=event.after,
                slots_before=event.slots_before,
                slots_after=event.slots_after,
            )
        )

    def _goes_on(self, rescale: str, state: RescaleState, **changes: object) -> None:
        """Does nothing if the first event of this rescale is no longer kept."""
        record = self._open
        if record is not None and record.rescale == rescale:
            record.state = state
            for name, value in changes.items():
                setattr(record, name, value)
