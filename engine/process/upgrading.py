"""Upgrades a running job: `engine/protocol/upgrading.py` decides each step, this module looks and carries out.

A record of the upgrade is written before each phase. Whoever calls `carry_on` after a crash goes on from there.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from engine.core.errors import NotRunning, StoreError, WeirError
from engine.core.paths import JobPaths
from engine.graph.upgrade_plan import UpgradePlan, plan_upgrade
from engine.host.launch import LaunchOptions, MasterLaunch
from engine.host.locks import held
from engine.host.run_folder import MasterExit
from engine.host.upgrade_record import UpgradeRecord
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.observe.savepoints import StopRecord
from engine.process.loading import load, load_job
from engine.process.submit import check_launch, start_detached
from engine.process.upgrade import look_at_targets
from engine.protocol.failures import Raised
from engine.protocol.scaling import AS_STARTED
from engine.protocol.upgrading import Ended, Phase, Progress, Seen, Step, Version, decide
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.savepoints import SavepointFolder
from engine.spark.code import kept_code
from engine.store.below import Below
from engine.store.opening import open_store

PATIENCE_S = 300.0
"""How long a new version may take to publish its first epoch before the old one takes over again."""
PROBATION_S = 30.0
"""How long a new version waits for its first record before it publishes an epoch without any."""
LOOK_EVERY_S = 0.3
UNSEEN_S = 15.0
"""A job that nobody is seen to look after for so long has lost its processes: supervisors give a sign every second."""
START_S = 60.0
"""A supervisor that this command has started gives its first sign within this time."""
WRITE_EVERY = 20
"""The record of an upgrade is written again after so many equal troubles."""
ASK_EVERY_S = 5.0
"""A version that runs and has published no epoch is asked for a checkpoint, again after this time."""

_ENDED = {
    Outcome.FINISHED: Ended.FINISHED,
    Outcome.STOPPED: Ended.STOPPED,
    Outcome.CANCELLED: Ended.CANCELLED,
    Outcome.FAILED: Ended.FAILED,
    Outcome.FENCED: Ended.FAILED,
}

Say = Callable[[str], None]


@dataclass(frozen=True)
class NewVersion:
    """The version that a job is to be upgraded to. `path` None: the same import path, with its code as it is now.

    `params` are added to those that the job was started with. Those that the new version does not know are left out.
    """

    path: str | None = None
    params: Mapping[str, str] | None = None
    parallelism: int | None = None
    allow_non_restored_state: bool = False


def new_launch(client: JobClient, version: NewVersion) -> MasterLaunch:
    """Returns the start of the new version: that of the running one, with what is to change.

    What rescales have decided stays, unless another parallelism is asked for.
    """
    old = _last_launch(client)
    kept = {name: getattr(old, name) for name in LaunchOptions.__struct_fields__}
    options = LaunchOptions(**kept | _changed(old, version))
    loaded = load_job(msgspec.structs.replace(options, params={}, scaling=AS_STARTED))
    known = {param.name for param in loaded.params}
    params = {name: value for name, value in old.params.items() if name in known} | dict(version.params or {})
    uids = {uid for vertex in loaded.graph.vertices for uid in vertex.uids}
    scaling = msgspec.structs.replace(
        options.scaling, operators={uid: n for uid, n in options.scaling.operators.items() if uid in uids}
    )
    return check_launch(msgspec.structs.replace(options, params=params, scaling=scaling), client.store)


def _changed(old: MasterLaunch, version: NewVersion) -> dict[str, object]:
    return {
        "path": version.path or old.path,
        "parallelism": version.parallelism or old.parallelism,
        "allow_non_restored_state": version.allow_non_restored_state,
        "scaling": old.scaling if version.parallelism is None else AS_STARTED,
        "code": "",
        "probation_s": 0.0,
    }


def _last_launch(client: JobClient) -> MasterLaunch:
    launch = client.folder.read_launch()
    if launch is None:
        client.status()  # raises an error that says which jobs there are
        raise NotRunning(f"job {client.name!r} has no start that could be upgraded")
    if not launch.path:
        raise WeirError(
            f"job {client.name!r} runs inside a script or a notebook: end it there, change it, and start it again"
        )
    return launch


def plan(client: JobClient, launch: MasterLaunch) -> UpgradePlan:
    """Says what becomes of everything in the job's newest epoch under the new version. Changes nothing."""
    log = EpochLog(open_store(client.store), JobPaths(client.name))
    last = log.last()
    if last is None or last.newest is None:
        what = "wait for its first checkpoint" if client.alive() else f"start {launch.path} with `weir submit`"
        raise WeirError(f"job {client.name!r} has no epoch yet, so there is nothing to upgrade from: {what}")
    manifest, graph = log.read_manifest(last.newest), load(launch)
    targets = look_at_targets(graph, log, last.job_id, manifest, last.newest.epoch)
    return plan_upgrade(graph, manifest, targets, launch.allow_non_restored_state)


def check(planned: UpgradePlan, launch: MasterLaunch) -> None:
    """Raises an error if anything in the plan is refused."""
    if planned.refused:
        raise WeirError(f"{launch.path} can't take over from {planned.job}: nothing was changed")


def switch(client: JobClient, launch: MasterLaunch, by: str, say: Say, patience_s: float = PATIENCE_S) -> UpgradeRecord:
    """Replaces the running version by the new one, and returns the record of the upgrade when it is over."""
    with only_one(client):
        if (begun := unfinished(client)) is not None:  # another command began it after this one had looked, and died
            raise WeirError(begun.in_words(client.name))
        return carry_on(client, begin(client, launch, by), say, patience_s)


def carry_on_begun(
    client: JobClient, begun: UpgradeRecord, path: str | None, say: Say, patience_s: float = PATIENCE_S
) -> UpgradeRecord:
    """Carries on an upgrade that was interrupted. Raises an error if it was to another version than `path`."""
    if path not in (None, begun.new.path):
        raise WeirError(
            f"an upgrade of {client.name} to {begun.new.path} is not done yet ({begun.progress.phase.value}): "
            f"`weir upgrade {client.name}` carries it on; then upgrade to {path}"
        )
    with only_one(client):
        current = client.folder.read_upgrade() or begun  # another command may have carried it on meanwhile
        if current.progress.phase.over:
            return current
        say(f"carrying on the upgrade to {current.new.path} that was begun ({current.progress.phase.value})")
        return carry_on(client, current, say, patience_s)


def begin(client: JobClient, launch: MasterLaunch, by: str, id: str | None = None) -> UpgradeRecord:
    """Writes down that the job is to be upgraded. Nothing has happened to it yet. `id`: of the upgrade, if decided."""
    if not client.alive():
        raise NotRunning(
            f"job {client.name!r} is not running: start the new version with `weir submit {launch.path} --name "
            f"{client.name}`; it goes on from the last epoch"
        )
    old, id, now_ms = _last_launch(client), id or secrets.token_hex(4), _now_ms()
    record = UpgradeRecord(
        id=id,
        progress=Progress(Phase.STOPPING),
        old=old,
        new=msgspec.structs.replace(launch, id=secrets.token_hex(8), probation_s=PROBATION_S),
        back=msgspec.structs.replace(old, id=secrets.token_hex(8), code=kept_code(old)),
        savepoint=f"upgrade-{id}",
        by=by,
        began_ms=now_ms,
        changed_ms=now_ms,
    )
    client.folder.write_upgrade(record)
    client.folder.forget_upgrade_request()
    return record


def unfinished(client: JobClient) -> UpgradeRecord | None:
    """Returns the job's upgrade if it was begun and is not over."""
    record = client.folder.read_upgrade()
    return None if record is None or record.progress.phase.over else record


@contextlib.contextmanager
def only_one(client: JobClient) -> Iterator[None]:
    """Raises an error if another command upgrades the job at the moment."""
    lock = client.folder.upgrade_lock
    with contextlib.ExitStack() as opened:
        try:
            taken = opened.enter_context(held(lock))
        except OSError as error:
            raise WeirError(
                f"job {client.name!r} can't be upgraded now: {lock} can't be written ({error.strerror}). This command "
                "has changed nothing: mend that, and give it again"
            ) from error
        if not taken:
            raise WeirError(f"another command upgrades job {client.name!r} at the moment: wait until it is done")
        yield


def carry_on(client: JobClient, record: UpgradeRecord, say: Say, patience_s: float = PATIENCE_S) -> UpgradeRecord:
    """Takes the remaining steps of an upgrade, and returns its record when it is over."""
    return _Upgrade(client, record, say, patience_s).run()


class _Upgrade:
    def __init__(self, client: JobClient, record: UpgradeRecord, say: Say, patience_s: float) -> None:
        self._client = client
        self._record = record
        self._say = say
        self._patience_s = patience_s
        self._log = EpochLog(open_store(client.store), JobPaths(client.name), begun=True)  # `plan` has read its epoch
        self._since_s = time.monotonic()
        self._presumed_until_s = self._since_s + UNSEEN_S  # until then a job without a sign may still give one
        self._ask_at_s = 0.0
        self._asked = False
        self._cancelled = False
        self._declined = ""

    def run(self) -> UpgradeRecord:
        """A store that fails or is full is waited for: between the two versions nobody else would start one."""
        while True:
            try:
                seen = self._look()
                decision = decide(self._record.progress, seen, self._patience_s * 1000)
                self._write_down(decision.progress)
                if decision.step is None:
                    return self._record
                self._take(decision.step, seen)
            except (StoreError, OSError) as error:
                self._again(f"the store does not answer, or is full: {error}")

    def _write_down(self, progress: Progress) -> None:
        """Writes the phase down, or raises an error: then nothing of it may happen."""
        if progress == self._record.progress:
            return
        record = msgspec.structs.replace(self._record, progress=progress, changed_ms=_now_ms())
        begins = progress.phase is not self._record.progress.phase
        if begins:
            record = msgspec.structs.replace(record, retries=0, trouble="")
        self._client.folder.write_upgrade(record)
        self._record = record
        if begins:
            self._since_s = time.monotonic()
        if progress.phase is Phase.STARTING:
            self._say(f"the old version has stopped with epoch {progress.cut}; starting {self._record.new.path}")
        elif progress.phase is Phase.GOING_BACK:
            self._say(f"{progress.reason}; going back to the old version")

    def _again(self, trouble: str) -> None:
        """Shows that a step has to be repeated, and why: to who has asked for the upgrade, and in its record."""
        changed, retries = trouble != self._record.trouble, self._record.retries + 1
        self._record = msgspec.structs.replace(self._record, retries=retries, trouble=trouble, changed_ms=_now_ms())
        if changed:
            self._say(f"{self._record.progress.phase.value}: {trouble}; trying again")
        if changed or retries % WRITE_EVERY == 0:
            with contextlib.suppress(OSError):  # what fails may be this folder
                self._client.folder.write_upgrade(self._record)
        time.sleep(LOOK_EVERY_S)

    def _take(self, step: Step, seen: Seen) -> None:
        match step:
            case Step.STOP_OLD:
                self._stop_old()
            case Step.START_NEW:
                if seen.version is Version.NEW:
                    self._again(_died("new", seen))
                self._start(self._record.new)
            case Step.START_OLD:
                if seen.version is Version.BACK:
                    self._again(_died("old", seen))
                self._start_old()
            case Step.CANCEL_NEW | Step.CANCEL:
                if self._cancelled:
                    self._again("the job was cancelled, and is seen to run")
                self._cancelled = True
                with contextlib.suppress(NotRunning):
                    self._client.cancel_start(self._record.by)
                    self._client.wait_until_ended()
            case Step.WAIT:
                if seen.version is Version.NEW and seen.up:
                    self._ask_for_a_checkpoint()
                time.sleep(LOOK_EVERY_S)

    def _stop_old(self) -> None:
        """Asks the old version to stop. If it can't, it goes on, and so says why.

        One that refuses because it does not run any more, between two attempts, is asked again when it does.
        """
        self._say("stopping the old version with a savepoint")
        try:
            self._client.stop(savepoint=True, name=self._record.savepoint)
            self._asked = True
        except NotRunning:
            time.sleep(LOOK_EVERY_S)  # it has ended, or its JobMaster is being replaced
        except WeirError as error:
            up, _ = self._running()
            if not up or self._is_being_stopped():
                return
            if self._own_savepoint.exists():
                self._take_another_name()
            else:
                self._declined = str(error)

    def _is_being_stopped(self) -> bool:
        """Says whether the job is about to end, because this upgrade or somebody else has asked for it before."""
        try:
            stop = self._stop()
        except WeirError:
            return True
        return stop is not None and not stop.failed

    def _take_another_name(self) -> None:
        """A first try has made the savepoint, or a JobMaster has completed it, and the job went on behind it."""
        name = f"upgrade-{self._record.id}-{secrets.token_hex(2)}"
        record = msgspec.structs.replace(self._record, savepoint=name, changed_ms=_now_ms())
        self._client.folder.write_upgrade(record)
        self._record = record

    @property
    def _own_savepoint(self) -> SavepointFolder:
        return SavepointFolder(Below(self._log.store, self._log.paths.savepoint(self._record.savepoint)))

    def _start(self, launch: MasterLaunch) -> None:
        if (by := self._client.folder.cancelled_elsewhere()) is not None:
            self._client.folder.cancel_upgrade(by)
            return
        start_detached(launch, self._record.by, launch.id)
        self._presumed_until_s = time.monotonic() + START_S

    def _start_old(self) -> None:
        """Starts the old version again, behind a fence: what may be left of the new one can publish nothing any more.

        If that was faster than the fence, or the store does not answer, the next look decides again.
        """
        try:
            claimed = self._log.claim(f"upgrade-{secrets.token_hex(8)}")
        except StoreError as error:
            self._again(f"the new version could not be fenced: {error}")
            return
        newest = claimed.record.newest if claimed is not None else None
        if newest is not None and newest.epoch == self._record.progress.cut:
            self._start(self._record.back)
        elif claimed is None:
            self._again("the new version could not be fenced: the store gave no answer, or another process was faster")
        else:
            self._again("the new version has published an epoch in the last moment")

    def _ask_for_a_checkpoint(self) -> None:
        """A job may take no checkpoints by itself, or a long time until the first."""
        now_s = time.monotonic()
        if now_s < self._ask_at_s or not self._is_tried():
            return
        self._ask_at_s = now_s + ASK_EVERY_S
        with contextlib.suppress(WeirError):
            self._client.trigger_checkpoint()

    # --- looking ---

    def _look(self) -> Seen:
        launch = self._client.folder.read_launch()
        ended = self._client.ended()
        up, runs, stop = False, False, None
        if ended is None:
            up, runs = self._running()
            try:
                stop = self._stop() if up else None
            except WeirError:
                up = False  # it is ending, or its JobMaster is being replaced: nobody knows whether it was asked
            ended = self._client.ended()  # it may have ended meanwhile
        if ended is not None and self._lost_its_supervisor(ended):
            runs, ended = False, None
        last = self._log.last()
        reason, raised = (ended.reason, ended.raised) if ended is not None else self._trouble()
        return Seen(
            version=self._record.version_of(launch.id if launch is not None else ""),
            runs=runs and ended is None,
            up=up and ended is None,
            ended=self._how(ended) if ended is not None else None,
            epoch=last.newest.epoch if last is not None and last.newest is not None else 0,
            waited_ms=(time.monotonic() - self._since_s) * 1000,
            reason=reason,
            raised=raised,
            asked=stop is not None and not stop.failed,
            cancelled=self._client.folder.upgrade_is_cancelled(self._record.id),
            job=self._client.name,
            path=self._record.old.path,
            declined=self._declined or (stop.reason if self._asked and stop is not None and stop.failed else ""),
        )

    def _running(self) -> tuple[bool, bool]:
        """Returns whether records flow, and whether the job is looked after: it was a moment ago, or has just begun."""
        up, seen = False, True
        try:
            up = self._client.status().running
        except NotRunning:
            seen = self._client.looked_after() is not None
        now_s = time.monotonic()
        if seen:
            self._presumed_until_s = max(self._presumed_until_s, now_s + UNSEEN_S)
        return up, now_s < self._presumed_until_s

    def _lost_its_supervisor(self, ended: MasterExit) -> bool:
        """Says whether a JobMaster has cancelled the job because its supervisor was killed: nobody asked for that."""
        desired = self._client.folder.read_desired_here()
        return ended.outcome is Outcome.CANCELLED and desired is not None and desired.running

    def _how(self, ended: MasterExit) -> Ended:
        """Tells a stop of this upgrade, which has made its savepoint, from one that somebody else asked for."""
        if ended.outcome is not Outcome.STOPPED or self._record.progress.phase is not Phase.STOPPING:
            return _ENDED[ended.outcome]
        return Ended.STOPPED if self._own_savepoint.exists() else Ended.STOPPED_BY_OTHERS

    def _is_tried(self) -> bool:
        """Says whether the attempt that runs has read a record, or has run for long without one.

        The time since the phase began says nothing: a version may take long to start, and fail at its first record.
        """
        with contextlib.suppress(WeirError):
            status = self._client.status()
            has_read = any(subtask.rows_in for vertex in status.vertices for subtask in vertex.subtasks)
            return has_read or (status.uptime_ms or 0) >= PROBATION_S * 1000
        return False

    def _stop(self) -> StopRecord | None:
        """Returns the last stop that the JobMaster was asked for, if it is under way or was asked for by this upgrade.

        One that has ended an earlier start, as that of an earlier upgrade, is under way no more. No clock is looked at:
        it may have been set back since.
        """
        stop = self._client.stop_record() if self._record.progress.phase is Phase.STOPPING else None
        own = stop is not None and stop.savepoint == self._record.savepoint
        return stop if stop is not None and (own or stop.under_way) else None

    def _trouble(self) -> tuple[str, Raised | None]:
        """Returns what keeps a version from running: the death of its JobMaster, or the end of its last attempt."""
        deaths = self._client.folder.read_deaths()
        if deaths is not None and deaths.in_a_row:
            return deaths.in_words(_now_ms()), None
        return "", None


def _died(which: str, seen: Seen) -> str:
    return f"the processes of the {which} version died{f': {seen.reason}' if seen.reason else ''}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
