"""Whether the faults of a drill happened: the job's history must name each victim as the cause of its restart.

A fault after which the job has to go on without a restart happened if its victim was seen dead or stopped, which
`checks/strikes.py` ensures, and if the history knows of no restart meanwhile.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

from checks.catalogue import CATALOGUE, Cause, Ends
from checks.results import Struck
from engine.jobmaster.events import (
    Aborted,
    AttemptFailed,
    Claimed,
    Rescaled,
    RescaleStarted,
    SavepointCompleted,
    SavepointTriggered,
    Stopped,
)
from engine.observe.history import History
from engine.protocol.failures import AttemptFailure

Asked = SavepointTriggered | SavepointCompleted | RescaleStarted | Rescaled
Happened = AttemptFailed | Claimed | Stopped | Aborted | Asked
_TOLD: dict[Ends, tuple[type[Asked], ...]] = {
    Ends.BEGUN: (SavepointTriggered, RescaleStarted),
    Ends.DONE: (SavepointCompleted, Rescaled),
}
LATE_MS = 5_000
"""A checkpoint that met a fault may be aborted this long after the fault is over."""


def happened(store: str | Path, job: str) -> list[Happened]:
    """Returns what ended attempts, JobMasters, starts and checkpoints of a job, oldest first."""
    return [event for event in History(store, job).events() if isinstance(event, Happened)]


def cause_of(struck: Struck, events: Sequence[Happened]) -> str:
    """Returns the cause of the restart after a blow, as the history tells it; empty if the job went on."""
    cause = _expected(struck)
    if cause is None:
        return ""
    if cause.ends is Ends.JOBMASTER:
        return _death(struck, events)
    if cause.ends is Ends.START:
        return next((event.reason for event in _after(struck, events) if isinstance(event, Stopped)), "")
    if cause.ends is Ends.CHECKPOINT:
        return _not_written(cause, struck, events)
    if cause.ends in _TOLD:
        return _told_of(cause, struck, events)
    failed = next((e for e in events if isinstance(e, AttemptFailed) and e.attempt == struck.attempt), None)
    if cause.ends in (Ends.ATTEMPT, Ends.CHANNEL):
        return f"{failed.cause}: {failed.detail}" if failed is not None else ""
    recovered_ms = struck.at_ms + 1000 * struck.recovery_s
    if failed is not None and failed.at_ms <= recovered_ms and cause.ends is Ends.NOTHING:
        return f"{failed.cause}: {failed.detail}"
    if cause.ends is Ends.NOTHING and any(e.at_ms <= recovered_ms for e in _claims(struck, events)):
        return _death(struck, events) or "another JobMaster"
    return ""


def why_no_verdict(faults: Sequence[Struck], events: Sequence[Happened]) -> str:
    """Returns why a drill with these blows says nothing; empty if each is the cause that its fault must have."""
    if not faults:
        return "no fault struck"
    for struck in faults:
        cause, found = _expected(struck), cause_of(struck, events)
        if cause is None:
            return f"{struck.fault!r} is no fault of this version's catalogue: drill again"
        at = CATALOGUE[struck.fault].blows[struck.blow].at
        if struck.point != (at.value if at is not None else ""):
            return f"{struck.fault}: {struck} did not meet it at {at.value if at else 'no step'}"
        if cause.ends in (Ends.NOTHING, Ends.COVERED):
            if found:
                return f"{struck.fault}: the job was to go on without {struck}, but restarted: {found}"
            continue
        if not found:
            return f"the fault did not happen: the job went on when {struck} was struck by {struck.fault}"
        if not _names(cause, struck, found, events):
            return f"{struck.fault}: {struck} was struck, but the job restarted for another cause: {found}"
    return ""


def _expected(struck: Struck) -> Cause | None:
    fault = CATALOGUE.get(struck.fault)
    return fault.blows[struck.blow].cause if fault is not None and struck.blow < len(fault.blows) else None


def _names(cause: Cause, struck: Struck, found: str, events: Sequence[Happened]) -> bool:
    """Says whether what the history tells is the expected cause, and names the victim as far as it knows it."""
    code = found.partition(":")[0]
    if cause.ends is Ends.CHECKPOINT:
        return code in cause.words
    if cause.ends in _TOLD:
        return found.partition(" ")[0] in cause.words
    if cause.ends is not Ends.ATTEMPT:
        return any(words in found for words in cause.words)
    slots = [e.slot for e in events if isinstance(e, AttemptFailed) and e.attempt == struck.attempt]
    is_victim = slots[0] == struck.slot and re.search(rf"\b{struck.pid}\b", found) is not None
    return is_victim and code in cause.words


def _after(struck: Struck, events: Sequence[Happened]) -> list[Happened]:
    return [event for event in events if event.at_ms >= struck.at_ms]


def _told_of(cause: Cause, struck: Struck, events: Sequence[Happened]) -> str:
    """Returns what became of what was asked for; if its attempt or JobMaster failed first, the cause of that."""
    for event in _after(struck, events):
        if cause.ends is Ends.DONE and isinstance(event, AttemptFailed):
            return f"{event.cause}: {event.detail}"
        if cause.ends is Ends.DONE and isinstance(event, Claimed) and event.generation > struck.generation:
            return event.death or "another JobMaster"
        if isinstance(event, _TOLD[cause.ends]):
            name = event.rescale if isinstance(event, RescaleStarted | Rescaled) else event.name
            what = "rescale" if isinstance(event, RescaleStarted | Rescaled) else "savepoint"
            return f"{what} {name}: {'completed' if cause.ends is Ends.DONE else 'begun'}"
    return ""


def _not_written(cause: Cause, struck: Struck, events: Sequence[Happened]) -> str:
    """Returns what failed while files could not be written: a checkpoint, unless an attempt ended for another cause."""
    until_ms = struck.until_ms + LATE_MS
    meanwhile = [event for event in _after(struck, events) if event.at_ms <= until_ms]
    for event in meanwhile:
        if isinstance(event, AttemptFailed) and not _is_of_store(event):
            return f"{event.cause}: {event.detail}"
    aborted = [e for e in meanwhile if isinstance(e, Aborted) and e.why in cause.words]
    return f"{aborted[0].why}: {aborted[0].detail}" if aborted else ""


def _is_of_store(failed: AttemptFailed) -> bool:
    by_errno = any(os.strerror(number) in failed.detail for number in (errno.EFBIG, errno.EROFS))
    return failed.cause == AttemptFailure.CHECKPOINTS_FAILED.code or by_errno


def _claims(struck: Struck, events: Sequence[Happened]) -> list[Claimed]:
    return [e for e in events if isinstance(e, Claimed) and e.generation > struck.generation]


def _death(struck: Struck, events: Sequence[Happened]) -> str:
    """Returns why the JobMaster of the blow died, as its successor wrote it down."""
    return next((event.death for event in _claims(struck, events)), "")
