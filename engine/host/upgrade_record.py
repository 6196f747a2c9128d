"""`UpgradeRecord`: the last upgrade of a job, in `<store>/<job>/upgrade.json`, from which another command goes on."""

from __future__ import annotations

import msgspec

from engine.graph.upgrade_plan import UpgradePlan
from engine.host.launch import MasterLaunch
from engine.protocol.failures import Raised
from engine.protocol.upgrading import Phase, Progress, Version


class UpgradeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of an upgrade, without the options of its starts, which may hold secrets.

    `old` and `new` are import paths; `cut` is the epoch with which the old version stopped. `phase` is one of
    `protocol.upgrading.Phase`, or of `host.upgrade_request.Check` while nothing has happened to the job yet; only then
    may there be a `plan`. `retries` counts the steps of this phase that were repeated, `trouble` says why the last.
    """

    id: str
    phase: str
    old: str
    new: str
    cut: int | None
    savepoint: str
    reason: str
    raised: Raised | None
    by: str
    began_ms: int
    changed_ms: int
    plan: UpgradePlan | None = None
    retries: int = 0
    trouble: str = ""


class UpgradeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`old` is the start that was running, `new` that of the new version, `back` that of the old version's code again.

    `savepoint` is the name of the savepoint that the old version stops with. Times are those of the wall clock.
    `retries` and `trouble` are those of the phase that it is in.
    """

    id: str
    progress: Progress
    old: MasterLaunch
    new: MasterLaunch
    back: MasterLaunch
    savepoint: str
    by: str
    began_ms: int
    changed_ms: int
    retries: int = 0
    trouble: str = ""

    def version_of(self, launch_id: str) -> Version:
        """Says which of the upgrade's starts this is."""
        starts = {self.old.id: Version.OLD, self.new.id: Version.NEW, self.back.id: Version.BACK}
        return starts.get(launch_id, Version.OTHER)

    def has_taken_over(self, launch_id: str, epoch: int) -> bool:
        """Says whether this start, the job's last, is the new version and has published: `epoch` is the newest."""
        cut = self.progress.cut
        return self.version_of(launch_id) is Version.NEW and cut is not None and epoch > cut

    @property
    def status(self) -> UpgradeStatus:
        of = self.progress
        return UpgradeStatus(
            id=self.id,
            phase=of.phase.value,
            old=self.old.path,
            new=self.new.path,
            cut=of.cut,
            savepoint=self.savepoint,
            reason=of.reason,
            raised=of.raised,
            by=self.by,
            began_ms=self.began_ms,
            changed_ms=self.changed_ms,
            retries=self.retries,
            trouble=self.trouble,
        )

    def in_words(self, job: str) -> str:
        """Says how far the upgrade has come, in one sentence for a person."""
        to = self.new.path
        match self.progress.phase:
            case Phase.UPGRADED:
                return f"{job} was upgraded to {to}"
            case Phase.BACK:
                return f"{job} runs the old version again: {self.progress.reason}"
            case Phase.KEPT:
                return f"the upgrade of {job} to {to} was given up: {self.progress.reason}"
            case Phase.FAILED:
                return f"no version of {job} runs: {self.progress.reason}"
            case phase:
                tried = f"; tried {self.retries + 1} times, last trouble: {self.trouble}" if self.retries else ""
                how = f"`weir upgrade {job}` carries it on, unless a command does so now"
                return f"an upgrade of {job} to {to} is not done ({phase.value}{tried}): {how}"
