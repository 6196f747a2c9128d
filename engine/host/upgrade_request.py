"""`UpgradeRequest`: an upgrade that was asked for over HTTP, in `<store>/<job>/upgrade-request.json`.

It says how the check of the new version ended. Once the upgrade is begun, its `UpgradeRecord` of the same id says more.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Annotated, Any

import msgspec

from engine.graph.upgrade_plan import UpgradePlan
from engine.host.asked_version import AskedVersion
from engine.host.upgrade_record import UpgradeStatus
from engine.protocol.failures import Raised


class AskedUpgrade(AskedVersion, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /upgrade`: the options of `weir upgrade`."""

    timeout_s: Annotated[float, msgspec.Meta(ge=1)] | None = None
    dry_run: bool = False


class Check(Enum):
    """How far the check of a new version has come. Nothing has happened to the job yet."""

    CHECKING = "checking"
    """A process loads the new version, and plans what becomes of the state."""
    PLANNED = "planned"
    """It was a dry run: there is a plan."""
    REFUSED = "refused"


class UpgradeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`old` is the import path of the version that runs. `reason` says why the upgrade was refused."""

    id: str
    asked: AskedUpgrade
    old: str
    by: str
    began_ms: int
    changed_ms: int
    check: Check = Check.CHECKING
    reason: str = ""
    raised: Raised | None = None
    plan: UpgradePlan | None = None

    @property
    def under_way(self) -> bool:
        return self.check is Check.CHECKING

    def refused(self, why: str) -> UpgradeRequest:
        return self.changed(check=Check.REFUSED, reason=why)

    def changed(self, **fields: Any) -> UpgradeRequest:
        return msgspec.structs.replace(self, changed_ms=time.time_ns() // 1_000_000, **fields)

    @property
    def status(self) -> UpgradeStatus:
        return UpgradeStatus(
            id=self.id,
            phase=self.check.value,
            old=self.old,
            new=self.asked.to or self.old,
            cut=None,
            savepoint="",
            reason=self.reason,
            raised=self.raised,
            by=self.by,
            began_ms=self.began_ms,
            changed_ms=self.changed_ms,
            plan=self.plan,
        )
