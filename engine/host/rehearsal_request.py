"""`RehearsalRequest`: a rehearsal that was asked for over HTTP, in `<store>/<job>/rehearsal-request.json`."""

from __future__ import annotations

import time
from enum import Enum
from typing import Annotated, Any

import msgspec

from engine.graph.upgrade_plan import UpgradePlan
from engine.host.asked_version import AskedVersion
from engine.protocol.failures import Raised

CHECKPOINTS = 5


class AskedRehearsal(AskedVersion, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /rehearsal`: the options of `weir upgrade --rehearse`."""

    checkpoints: Annotated[int, msgspec.Meta(ge=1)] = CHECKPOINTS


class RehearsalPhase(Enum):
    """How far a rehearsal has come. The last three are verdicts on what the new version wrote."""

    CHECKING = "checking"
    """A process loads the new version, and plans what becomes of the state."""
    REHEARSING = "rehearsing"
    REFUSED = "refused"
    """The new version was not started, or the process of the rehearsal died: there is no verdict."""
    PASSED = "passed"
    FAILED = "failed"
    COULD_NOT_RUN = "could not run"

    @property
    def over(self) -> bool:
        return self not in (RehearsalPhase.CHECKING, RehearsalPhase.REHEARSING)


class RehearsalStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of a rehearsal, without its parameters, which may hold secrets.

    `old` and `new` are import paths. `doing` says what the rehearsal does, `reason` why it ended without a result.
    `result` is that of the comparison, as `weir rehearsal --json` prints it; the engine does not look into it.
    """

    id: str
    phase: RehearsalPhase = RehearsalPhase.CHECKING
    old: str
    new: str
    checkpoints: int
    by: str
    began_ms: int
    changed_ms: int
    doing: str = ""
    reason: str = ""
    raised: Raised | None = None
    plan: UpgradePlan | None = None
    result: dict[str, Any] | None = None


class RehearsalRequest(msgspec.Struct, frozen=True):
    asked: AskedRehearsal
    status: RehearsalStatus

    @property
    def under_way(self) -> bool:
        return not self.status.phase.over

    def refused(self, why: str) -> RehearsalRequest:
        return self.changed(phase=RehearsalPhase.REFUSED, doing="", reason=why)

    def changed(self, **fields: Any) -> RehearsalRequest:
        now_ms = time.time_ns() // 1_000_000
        return RehearsalRequest(self.asked, msgspec.structs.replace(self.status, changed_ms=now_ms, **fields))
