"""Decides the steps by which a running job gets another version of its code, or goes back to the old one. Pure.

    STOPPING    the old version stops with a savepoint; the epoch that it ends with is the cut
    STARTING    the new version goes on from the cut, until it publishes an epoch of its own
    GOING_BACK  the new version failed before that: the old one goes on from the same cut
    UPGRADED, BACK, KEPT, FAILED: the upgrade is over

Each phase is written down before its first step, and every step may be repeated, so a command that dies at any moment
is carried on by the next one. Invariant: the old version never goes on behind an epoch that the new one published; that
epoch is the point of no return.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from engine.protocol.failures import Raised

CANCELLED_MEANWHILE = "the job was cancelled meanwhile"


class Phase(Enum):
    STOPPING = "stopping"
    STARTING = "starting"
    GOING_BACK = "going back"
    UPGRADED = "upgraded"
    BACK = "back"
    KEPT = "kept"
    """The old version was not stopped, and runs on; or somebody else ended or started the job meanwhile."""
    FAILED = "failed"
    """No version runs: the new one failed behind its first epoch, or the old one failed as well."""

    @property
    def over(self) -> bool:
        return self in (Phase.UPGRADED, Phase.BACK, Phase.KEPT, Phase.FAILED)


class Progress(msgspec.Struct, frozen=True):
    """How far an upgrade has come. `cut` is the epoch with which the old version stopped.

    `reason` says why it did not succeed; `raised` is the error of the new version's own code, if it was one. `again`:
    this upgrade has cancelled the new version, which published an epoch meanwhile and has to be started once more.
    """

    phase: Phase
    cut: int | None = None
    reason: str = ""
    raised: Raised | None = None
    again: bool = False


class Version(Enum):
    """The starts of a job that belong to an upgrade. BACK is the old version, started again."""

    OLD = "old"
    NEW = "new"
    BACK = "back"
    OTHER = "other"
    """Somebody else has started the job meanwhile."""


class Ended(Enum):
    FINISHED = "finished"
    STOPPED = "stopped"
    """It ended with the savepoint of the upgrade, as it was asked to."""
    STOPPED_BY_OTHERS = "stopped by somebody else"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True)
class Seen:
    """What is seen of the job. The last start is that of `version`, which `runs` (it is looked after), or `ended`.

    Neither: its processes died without an outcome. `epoch` is the newest of the job. `waited_ms` is the time since the
    phase began, `up` says that records flow. `asked`: the version was asked to stop and is about to; `declined`: it
    could not, and why. `cancelled`: a user has cancelled the job since the upgrade began. `job` and `path` are the name
    and the old version's import path, for messages.
    """

    version: Version
    runs: bool
    up: bool
    ended: Ended | None
    epoch: int
    waited_ms: float
    reason: str = ""
    raised: Raised | None = None
    asked: bool = False
    declined: str = ""
    cancelled: bool = False
    job: str = "JOB"
    path: str = "PATH"


class Step(Enum):
    """What to do next. After each, look at the job and decide again."""

    STOP_OLD = "stop the old version with a savepoint"
    START_NEW = "start the new version"
    CANCEL_NEW = "cancel the new version"
    START_OLD = "start the old version again"
    CANCEL = "cancel the version that runs, as a user has asked"
    WAIT = "wait"


@dataclass(frozen=True)
class Decision:
    """`progress` is written down before `step` is taken. There is no step once the upgrade is over."""

    progress: Progress
    step: Step | None


def decide(progress: Progress, seen: Seen, patience_ms: float) -> Decision:
    """Returns the next step. `patience_ms`: how long the new version may take to publish an epoch.

    So long a command also waits for an old version that is being restarted.
    """
    if seen.cancelled and not progress.phase.over:
        return _cancelled(progress, seen)
    match progress.phase:
        case Phase.STOPPING:
            return _stopping(progress, seen, patience_ms)
        case Phase.STARTING:
            return _starting(progress, seen, patience_ms)
        case Phase.GOING_BACK:
            return _going_back(progress, seen)
        case _:
            return Decision(progress, None)


def _cancelled(progress: Progress, seen: Seen) -> Decision:
    """No version is started any more. One that was started in the same moment is cancelled."""
    if seen.version is Version.OTHER:
        return _over(progress, Phase.KEPT, "the job was started anew by somebody else")
    if seen.runs:
        return Decision(progress, Step.CANCEL)
    passed = seen.version is Version.NEW and progress.cut is not None and seen.epoch > progress.cut
    return Decision(cancelled(progress, upgraded=passed), None)


def cancelled(progress: Progress, *, upgraded: bool = False) -> Progress:
    """Ends an upgrade that a user has cancelled. Why the new version had failed by then is still told."""
    before = f"{progress.reason}; then " if progress.phase is Phase.GOING_BACK else ""
    phase = Phase.UPGRADED if upgraded else Phase.KEPT
    return Progress(phase, progress.cut, f"{before}{CANCELLED_MEANWHILE}", progress.raised)


def _stopping(progress: Progress, seen: Seen, patience_ms: float) -> Decision:
    if seen.version is not Version.OLD:
        return _over(progress, Phase.KEPT, "the job was started anew by somebody else")
    if seen.declined:
        return _over(progress, Phase.KEPT, f"the old version runs on: {seen.declined}")
    if seen.runs and not seen.up and seen.waited_ms > patience_ms:
        return _over(progress, Phase.KEPT, f"the old version does not run, so it can't be stopped: {seen.reason}")
    if seen.runs:
        return Decision(progress, Step.STOP_OLD if seen.up and not seen.asked else Step.WAIT)
    if seen.ended is Ended.FAILED:
        return _over(progress, Phase.KEPT, f"the old version failed while it was stopped: {seen.reason}", seen.raised)
    if seen.ended is Ended.CANCELLED:
        return _over(progress, Phase.KEPT, CANCELLED_MEANWHILE)
    if seen.ended is None:
        died = f"the processes of the old version died while it was stopped; `weir resume {seen.job}` starts it again"
        return _over(progress, Phase.KEPT, died)
    if seen.ended is Ended.STOPPED_BY_OTHERS:
        how = f"`weir submit {seen.path} --name {seen.job}` starts it again"
        return _over(progress, Phase.KEPT, f"somebody else stopped the job meanwhile; {how}")
    return Decision(Progress(Phase.STARTING, seen.epoch), Step.START_NEW)


def _starting(progress: Progress, seen: Seen, patience_ms: float) -> Decision:
    assert progress.cut is not None
    if seen.version is Version.OLD and not seen.runs:
        return Decision(progress, Step.START_NEW)
    if seen.version is not Version.NEW:
        return _over(progress, Phase.KEPT, "the job was started anew by somebody else")
    passed = seen.epoch > progress.cut
    if progress.again and not seen.runs:
        return Decision(progress, Step.START_NEW)
    if passed and seen.ended is None and not seen.runs:
        return Decision(progress, Step.START_NEW)
    if seen.ended is Ended.FINISHED or (passed and seen.ended is not Ended.FAILED):
        return _over(progress, Phase.UPGRADED)
    if passed:
        what = f"the new version published epoch {seen.epoch}, so the old one can't take over, and then failed"
        return _over(progress, Phase.FAILED, f"{what}: {seen.reason}", seen.raised)
    if seen.ended is Ended.FAILED:
        return _back(progress, seen, f"the new version failed: {seen.reason}")
    if seen.ended is not None:
        return _over(progress, Phase.KEPT, f"the new version was {seen.ended.value} before its first epoch")
    if not seen.runs:
        return Decision(progress, Step.START_NEW)
    if seen.waited_ms > patience_ms:
        doing = "runs" if seen.up else "does not run"
        so_far = f"; so far: {seen.reason}" if seen.reason else ""
        why = f"the new version {doing} and has published no epoch after {patience_ms / 1000:.0f} s{so_far}"
        return _back(progress, seen, why)
    return Decision(progress, Step.WAIT)


def _back(progress: Progress, seen: Seen, why: str) -> Decision:
    going = Progress(Phase.GOING_BACK, progress.cut, why, seen.raised)
    return Decision(going, Step.CANCEL_NEW if seen.runs else Step.START_OLD)


def _going_back(progress: Progress, seen: Seen) -> Decision:
    assert progress.cut is not None
    if seen.version is Version.NEW:
        if seen.runs:
            return Decision(progress, Step.CANCEL_NEW)
        if seen.epoch > progress.cut:  # it was faster than the cancel: now only it can go on
            return Decision(Progress(Phase.STARTING, progress.cut, again=True), Step.START_NEW)
        return Decision(progress, Step.START_OLD)
    if seen.version is not Version.BACK:
        return _over(progress, Phase.KEPT, f"{progress.reason}; then the job was started anew by somebody else")
    if seen.up or seen.ended is Ended.FINISHED or seen.epoch > progress.cut:
        return _over(progress, Phase.BACK, progress.reason, progress.raised)
    if seen.ended is Ended.FAILED:
        return _over(progress, Phase.FAILED, f"{progress.reason}; then the old version failed: {seen.reason}")
    if seen.ended is not None:
        return _over(progress, Phase.KEPT, f"{progress.reason}; then the old version was {seen.ended.value}")
    return Decision(progress, Step.WAIT if seen.runs else Step.START_OLD)


def _over(progress: Progress, phase: Phase, reason: str = "", raised: Raised | None = None) -> Decision:
    return Decision(Progress(phase, progress.cut, reason, raised), None)
