"""`UpgradeRequest`: an upgrade that was asked for over HTTP, in `<store>/<job>/upgrade-request.json`.

It says how the check of the new version ended. Once the upgrade is begun, its `UpgradeRecord` of the same id says more.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from engine.graph.upgrade_plan import UpgradePlan
from engine.host.upgrade_record import UpgradeStatus
from engine.protocol.failures import Raised


class AskedUpgrade(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /upgrade`: the options of `weir upgrade`, which have the same meanings and defaults."""

    to: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    params: dict[str, str] = {}
    parallelism: Annotated[int, msgspec.Meta(ge=1)] | None = None
    allow_non_restored_state: bool = False
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
