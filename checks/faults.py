"""The faults of a drill, and whether they happened: the job's history must have ended the victim's attempt for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from checks.results import KilledWorker
from engine.jobmaster.events import AttemptFailed
from engine.observe.history import History
from engine.protocol.failures import AttemptFailure


def failures_of(store: str | Path, job: str) -> list[AttemptFailed]:
    """Returns why the attempts of a job ended, oldest first."""
    return [event for event in History(store, job).events() if isinstance(event, AttemptFailed)]


def why_no_verdict(faults: Sequence[KilledWorker], failures: Iterable[AttemptFailed]) -> str:
    """Returns why a drill with these faults says nothing; empty if each fault is the cause that ended its attempt."""
    if not faults:
        return "no worker was killed"
    ended = {failed.attempt: failed for failed in failures}
    for fault in faults:
        failed = ended.get(fault.attempt)
        if failed is None:
            return f"the fault did not happen: the job went on when {fault} was killed"
        lost = failed.cause == AttemptFailure.SLOT_LOST.code
        if not lost or failed.slot != fault.slot or str(fault.pid) not in failed.detail:
            return f"{fault} was killed, but its attempt ended for another cause: {failed.cause}, {failed.detail}"
    return ""
