"""`JobClient` talks to a running JobMaster over HTTP. It finds the JobMaster by the run folder in the store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import msgspec

from engine.core.errors import CorruptSnapshot, Ending, NotRunning, Slow, StoreError, WeirError
from engine.core.paths import JobPaths
from engine.host.last_upgrade import last_upgrade
from engine.host.launch import default_name
from engine.host.places import local_folder
from engine.host.run_folder import Deaths, MasterExit, RunFolder, SupervisorSign
from engine.host.starts import shared_jobs
from engine.host.upgrade_record import UpgradeStatus
from engine.jobmaster.actions import Outcome, is_drained
from engine.jobmaster.collecting import Collection
from engine.jobmaster.status import CheckpointStatus, JobStatus
from engine.observe import waiting
from engine.observe.gate_routes import GateStatus
from engine.observe.history import History
from engine.observe.rescales import RescaleRecord
from engine.observe.savepoints import (
    ENDED_FIRST,
    LOST,
    SavepointRecord,
    SavepointRecords,
    SavepointState,
    StopRecord,
    with_store,
)
from engine.observe.timeline import CheckpointDetail, Timeline
from engine.observe.waiting import LookedAfter
from engine.protocol.gate import Ruling
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.query import StateOfKey
from engine.store.bucket import is_bucket
from engine.store.opening import open_store
from engine.store.places import open_place

PATIENCE_S = 15.0
"""How long a client waits for an answer of the JobMaster."""


@dataclass(frozen=True)
class JobClient:
    store: str
    name: str

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.store, self.name)

    def status(self) -> JobStatus:
        return msgspec.json.decode(self._call("GET", "/job").content, type=JobStatus)

    def timeline(self) -> Timeline:
        """Returns the job's checkpoints and restarts from the store; this also works after the job has ended."""
        if self.name not in known_jobs(self.store):
            raise NotRunning(self._why_not())
        return Timeline(History(self.store, self.name).events())

    def upgrade(self) -> UpgradeStatus | None:
        """Returns the job's last upgrade, done or not; this also works while the job does not run."""
        return last_upgrade(self.folder)

    def request_upgrade(self, to: str | None = None) -> str:
        """Begins to replace the job by the version at `to`, by default its own with changed code. Returns an id."""
        return str(self._call("POST", "/upgrade", {"to": to}).json()["upgrade"])

    def state(self, uid: str, key: Sequence[str]) -> StateOfKey:
        """Returns the state of a key in the newest epoch; `key` holds a text per key column."""
        query = urlencode([("key", text) for text in key])
        answer = self._call("GET", f"/state/{quote(uid, safe='')}?{query}")
        return msgspec.json.decode(answer.content, type=StateOfKey)

    def trigger_checkpoint(self) -> int:
        return int(self._call("POST", "/checkpoints").json()["checkpoint"])

    def wait_for_checkpoint(self, checkpoint: int, timeout_s: float) -> CheckpointDetail:
        """Waits until the checkpoint is completed; raises an error that says why if it was aborted."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            answer = self._call("GET", f"/checkpoints/{checkpoint}")
            found = msgspec.json.decode(answer.content, type=CheckpointDetail)
            if found.status is CheckpointStatus.COMPLETED:
                return found
            if found.status is CheckpointStatus.ABORTED:
                raise WeirError(f"checkpoint {checkpoint} was aborted: {found.why}: {found.detail}")
            time.sleep(0.1)
        raise WeirError(f"checkpoint {checkpoint} is not complete after {timeout_s:.0f} s; it may still complete")

    def gate(self) -> GateStatus:
        """Returns what the gates of the job hold, and their verdicts about the newest epoch."""
        return msgspec.json.decode(self._call("GET", "/gate").content, type=GateStatus)

    def rule(self, checkpoint: int, ruling: Ruling) -> None:
        """Decides about the held epoch of this checkpoint."""
        self._call("POST", "/gate", {"checkpoint": checkpoint, "decision": ruling.value})

    def gc(self, *, dry_run: bool = False) -> Collection:
        """Lets the running JobMaster delete what nobody needs; with `dry_run` it only says what that is."""
        answer = self._call("POST", "/gc", {"dry_run": dry_run})
        return msgspec.json.decode(answer.content, type=Collection)

    def savepoint(self, name: str | None = None, to: str | None = None) -> str:
        """Takes a savepoint of the running job, and returns its name at once. `to`: the folder to put it into."""
        return str(self._call("POST", "/savepoints", {"name": name, "to": to}).json()["savepoint"])

    def wait_for_savepoint(
        self,
        name: str,
        timeout_s: float | None = None,
        on_progress: Callable[[SavepointRecord], None] = lambda record: None,
    ) -> SavepointRecord:
        """Waits until the savepoint is completed; raises an error that says why if it failed.

        The job may end meanwhile: then the store tells what became of the savepoint.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for pause_s in pauses_s():
            if deadline is not None and time.monotonic() >= deadline:
                break
            found = self._savepoint(name)
            if found is None:
                raise WeirError(
                    f"there is no savepoint {name!r} of job {self.name!r}: if it was asked for, {LOST}. `weir status "
                    f"{self.name}` shows whether the job goes on, and `weir savepoints {self.name}` which ones exist"
                )
            if found.state is SavepointState.COMPLETED:
                return found
            if found.state is not SavepointState.PENDING:
                raise WeirError(f"savepoint {found.place}{self._why_not_made(found)}")
            on_progress(found)
            time.sleep(pause_s)
        raise WeirError(f"savepoint {name!r} is not complete after {timeout_s:.0f} s; it may still complete")

    def _why_not_made(self, failed: SavepointRecord) -> str:
        """Says why a savepoint failed, and what becomes of the job and of what its JobMaster has left."""
        if not _unsettled(failed.reason):
            return f" failed: {failed.reason}. Job {self.name!r} goes on"
        ended = self.ended()
        then = (
            self.how_again(ended) if ended is not None else f". `weir status {self.name}` shows whether the job goes on"
        )
        return f": {failed.reason}{self._may_be_completed(failed.savepoint)}{then}"

    def _may_be_completed(self, savepoint: str) -> str:
        """Says what became of a savepoint that a JobMaster left: if all its files are there, the next one makes it."""
        there = (one for one in self.savepoints() if one.savepoint == savepoint)
        if (made := next((one for one in there if one.state is SavepointState.COMPLETED), None)) is not None:
            return f". Its savepoint {made.place} is complete"
        return (
            f". If savepoint {savepoint} lacks only its last step, the next JobMaster completes it; `weir savepoints "
            f"{self.name}` shows that"
        )

    def _savepoint(self, name: str) -> SavepointRecord | None:
        """Asks the JobMaster for this one alone. If none answers or knows it, all that the store holds are read."""
        try:
            answer = self._call("GET", f"/savepoints/{quote(name, safe='')}")
            return msgspec.json.decode(answer.content, type=SavepointRecord)
        except (NotRunning, _Unknown):
            return next((one for one in self.savepoints() if one.savepoint == name), None)

    def savepoints(self) -> list[SavepointRecord]:
        """Returns the job's savepoints, newest first; this also works after the job has ended.

        One that is under way fails with its JobMaster, but not because that one is slow to answer.
        """
        try:
            return msgspec.json.decode(self._call("GET", "/savepoints").content, type=list[SavepointRecord])
        except NotRunning as error:
            away = not isinstance(error, Ending | Slow)
        if self.name not in known_jobs(self.store):
            raise NotRunning(self._why_not())
        records = SavepointRecords(History(self.store, self.name).savepoints())
        ended = self.ended()
        if ended is not None or away:
            records.settle(f"{ENDED_FIRST}: {ended.reason}" if ended is not None else LOST)
        return with_store(records.newest_first, open_store(self.store), JobPaths(self.name), open_place)

    def stop(
        self, drain: bool = False, savepoint: bool = False, name: str | None = None, to: str | None = None
    ) -> str | None:
        """Stops the job behind a last epoch, which is committed before it ends. Returns at once.

        `drain`: sources end as if they had read everything. `savepoint`: the last epoch is also made a savepoint, whose
        name is returned; a name or a folder asks for one, too.
        """
        wanted = savepoint or name is not None or to is not None
        asked = {"drain": drain, "savepoint": {"name": name, "to": to} if wanted else None}
        answer = self._call("POST", "/stop", asked).json()["savepoint"]
        return None if answer is None else str(answer)

    def stop_record(self) -> StopRecord | None:
        """Returns the newest request to stop the job; None: there was none."""
        return msgspec.json.decode(self._call("GET", "/stop").content, type=StopRecord | None)

    def wait_until_stopped(
        self, timeout_s: float | None = None, on_progress: Callable[[str], None] = lambda what: None
    ) -> MasterExit:
        """Waits until a job that is being stopped has ended. Raises an error that says why if it goes on instead.

        A JobMaster that knows of no stop under way has replaced the one that was asked. It goes on, unless it finds
        that the sources were drained already.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        looked_after = LookedAfter(self.folder, self.name, waiting.UNSEEN_S)
        while deadline is None or time.monotonic() < deadline:
            ended = self.ended()
            if ended is not None:
                return ended
            try:
                stop = self.stop_record()
            except NotRunning as error:
                looked_after.on_silence(error)
            else:
                looked_after.on_answer()
                why = self._why_not_stopped(stop)
                if why:
                    raise WeirError(f"job {self.name!r} is not stopped and goes on: {why}{self._left_of(stop)}")
                on_progress(stop.doing if stop is not None and stop.under_way else LOST)
            time.sleep(0.1)
        raise WeirError(f"job {self.name!r} has not stopped after {timeout_s:.0f} s; it may still stop")

    def _left_of(self, stop: StopRecord | None) -> str:
        """Says what became of the savepoint of a stop that failed with its JobMaster."""
        if stop is None or not stop.failed or not stop.savepoint or not _unsettled(stop.reason):
            return ""
        return self._may_be_completed(stop.savepoint)

    def _why_not_stopped(self, stop: StopRecord | None) -> str:
        """Returns why the job goes on; empty while that is not known."""
        if stop is not None and stop.under_way:
            return ""
        why = stop.reason if stop is not None and stop.failed else LOST
        try:
            return why if not _unsettled(why) or self.status().running else ""
        except NotRunning:
            return ""

    def savepoint_of_stop(self, name: str, ended: MasterExit) -> SavepointRecord:
        """Returns the savepoint of a stop that has ended the job. Raises an error if it was not made.

        A job that was drained ends without it if it can't be made, since its windows have fired for good.
        """
        found = self._savepoint(name)
        if found is not None and found.state is SavepointState.COMPLETED:
            return found
        why = f": {found.reason}" if found is not None and found.reason else ""
        raise WeirError(
            f"job {self.name!r} is {ended.outcome} ({ended.reason}), but its savepoint {name} was not made{why}. If it "
            f"lacks only its last step, `weir gc {self.name}` completes it; `weir savepoints {self.name}` shows that"
        )

    def rescale(self, parallelism: int | None = None, operators: Mapping[str, int] | None = None) -> str | None:
        """Begins to run the job at another parallelism and returns the rescale's id; None: it runs with it already.

        `parallelism` is that of all operators that set none in code, `operators` holds that of single ones by uid.
        """
        body = {"parallelism": parallelism, "operators": dict(operators or {})}
        started: str | None = self._call("POST", "/rescale", body).json()["rescale"]
        return started

    def rescales(self) -> list[RescaleRecord]:
        """Returns the rescales of the job, newest first."""
        return msgspec.json.decode(self._call("GET", "/rescales").content, type=list[RescaleRecord])

    def wait_for_rescale(
        self, rescale: str, timeout_s: float, on_state: Callable[[RescaleRecord], None] = lambda record: None
    ) -> RescaleRecord:
        """Waits until the rescale is completed, failed or interrupted, also through a change of the JobMaster.

        `on_state` gets each state that it goes through. The JobMaster that began the rescale knows of it; one that does
        not has replaced it.
        """
        deadline = time.monotonic() + timeout_s
        looked_after = LookedAfter(self.folder, self.name, waiting.UNSEEN_S)
        while time.monotonic() < deadline:
            try:
                found = next((record for record in self.rescales() if record.rescale == rescale), None)
            except NotRunning as error:
                if self.ended() is not None:
                    raise
                looked_after.on_silence(error)
            else:
                looked_after.on_answer()
                if found is None:
                    raise WeirError(
                        f"rescale {rescale} of job {self.name!r} was interrupted: its JobMaster died. `weir status "
                        f"{self.name}` shows which parallelism it has"
                    )
                if found.state.over:
                    return found
                on_state(found)
            time.sleep(0.1)
        raise WeirError(
            f"rescale {rescale} is not over after {timeout_s:.0f} s; weir rescales {self.name} says what becomes of it"
        )

    def cancel(self, by: str = "cli") -> None:
        """Ends the job. If it is not running, keeps it from being started again, and raises `NotRunning`.

        An upgrade that is under way starts no version any more. Between its two versions none runs, and that is no
        error: there was something to cancel.
        """
        upgraded = self.folder.cancel_upgrade(by)
        try:
            self.cancel_start(by)
        except NotRunning:
            if not upgraded:
                raise
        if upgraded:
            with contextlib.suppress(StoreError, CorruptSnapshot):  # who carries the upgrade on ends it
                self.folder.settle_cancelled_upgrade(self._newest_epoch())

    def _newest_epoch(self) -> int:
        last = EpochLog(open_store(self.store), JobPaths(self.name)).last()
        return last.newest.epoch if last is not None and last.newest is not None else 0

    def cancel_start(self, by: str) -> None:
        """Ends what runs now. An upgrade that is under way goes on. Raises `NotRunning` if nothing runs.

        While its JobMaster starts there is nobody to ask: the supervisor sees that it should stop. A bucket is asked
        last, because it may be away; a JobMaster that is cancelled tells it itself.
        """
        had_ended = self.ended() is not None
        self.folder.want_stopped_here(by)
        try:
            self._call("POST", "/cancel")
        except Ending:
            return  # the supervisor was faster
        except NotRunning:
            self.folder.want_stopped(by)
            ended = self.ended()
            if not had_ended and ended is not None and ended.outcome is Outcome.CANCELLED:
                return  # the supervisor saw the wish, and was done before the JobMaster was asked
            if self.folder.live_supervisor() is None:
                if (host := self.folder.started_elsewhere()) is not None:
                    raise NotRunning(
                        f"job {self.name!r} was started last on {host}, which is asked through the store to end it: "
                        "if it runs, it ends within some seconds"
                    ) from None
                raise

    def wait_until_running(
        self,
        timeout_s: float | None = None,
        on_death: Callable[[Deaths], None] = lambda deaths: None,
        on_sign: Callable[[SupervisorSign], None] = lambda sign: None,
    ) -> MasterExit | None:
        """Waits until records can flow. If the job ends before that, returns how.

        `on_death` gets each death of a JobMaster, `on_sign` what the supervisor shows meanwhile.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        looked_after = LookedAfter(self.folder, self.name, waiting.FIRST_SIGN_S)
        seen = 0
        while deadline is None or time.monotonic() < deadline:
            ended = self.ended()
            if ended is not None:
                return ended
            deaths = self.folder.read_deaths()
            if deaths is not None and deaths.total > seen:
                seen = deaths.total
                on_death(deaths)
            if (sign := self.folder.read_supervisor()) is not None:
                on_sign(sign)
            try:
                if self.status().running:
                    return None
                looked_after.on_answer()
            except NotRunning as error:
                looked_after.on_silence(error)
            time.sleep(0.2)
        raise WeirError(f"job {self.name!r} is not running after {timeout_s:.0f} s; its log is {self.folder.log_file}")

    def wait_until_ended(self, timeout_s: float | None = None) -> MasterExit | None:
        """Waits until the job has ended and returns how, or None if its JobMaster died without an outcome."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while deadline is None or time.monotonic() < deadline:
            ended = self.ended()
            if ended is not None:
                return ended
            if not self.alive() and self.folder.live_supervisor() is None:
                return self.ended()
            time.sleep(0.1)
        raise WeirError(f"job {self.name!r} has not ended after {timeout_s:.0f} s; its log is {self.folder.log_file}")

    def alive(self) -> bool:
        try:
            self.status()
        except Ending:
            return True
        except NotRunning:
            return False
        return True

    def ended(self) -> MasterExit | None:
        return self.folder.read_exit()

    def looked_after(self) -> str | None:
        """Says what the job's supervisor is doing while no JobMaster answers; None: there is none. May take seconds."""
        sign = self.folder.live_supervisor()
        return sign.in_words() if sign is not None else None

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        address = self.folder.read_address()
        if address is None:
            raise NotRunning(self._why_not())
        headers = {"authorization": f"Bearer {address.token}"}
        try:
            response = httpx.request(method, address.url + path, headers=headers, json=body, timeout=PATIENCE_S)
        except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
            raise Slow(
                f"the JobMaster of job {self.name!r} did not answer in {PATIENCE_S:.0f} s; what it was asked for may "
                f"still be done: look with `weir status {self.name}`"
            ) from error
        except (httpx.ReadError, httpx.RemoteProtocolError) as error:
            raise NotRunning(self._why_no_answer()) from error
        except httpx.TransportError as error:
            raise NotRunning(self._why_not()) from error
        if response.status_code == 503:
            raise Ending(response.json()["error"])
        if response.status_code == 404:
            raise _Unknown(response.json().get("error", "HTTP 404"))
        if response.status_code >= 400:
            raise WeirError(response.json().get("error", f"HTTP {response.status_code}"))
        return response

    def _why_no_answer(self) -> str:
        """Says what to do if the JobMaster ended while it was asked: its supervisor may be starting another."""
        if self.ended() is not None:
            return self._why_not()
        return (
            f"the JobMaster of job {self.name!r} ended before it answered; what it was asked for may have been done: "
            f"look with `weir status {self.name}`, and ask again when the job runs"
        )

    def _why_not(self) -> str:
        ended = self.folder.read_exit()
        if ended is not None:
            return f"job {self.name!r} is not running: it is {ended.outcome} ({ended.reason}){self.how_again(ended)}"
        host = self.folder.heard_elsewhere()
        if self.folder.read_launch() is None:  # this machine knows nothing of it; only now is a bucket asked
            if self.name not in known_jobs(self.store):
                return no_such_job(self.store, self.name)
            host = self.folder.started_elsewhere()
        if host is not None:
            return f"job {self.name!r} does not run on this machine; it was started last on {host}: look there"
        desired = self.folder.read_desired_here()
        again = f"; {self._when_it_runs()}" if desired is not None and desired.running else ""
        return f"job {self.name!r} is not running now{self._last_known()}; its log is {self.folder.log_file}{again}"

    def _when_it_runs(self) -> str:
        """Says what to do about a job that should be running: a supervisor that was seen lately starts it by itself."""
        sign = self.folder.read_supervisor()
        if sign is not None and time.time_ns() // 1_000_000 - sign.at_ms < waiting.UNSEEN_S * 1000:
            return f"ask again when `weir status {self.name}` shows that it runs"
        return after_a_reboot(self.name)

    def how_again(self, ended: MasterExit) -> str:
        """Says how a job that has ended is started again; nothing if it is over for good."""
        if ended.outcome is Outcome.FAILED:
            return f"; mend the cause, then `{self._submit()}` starts it again"
        desired = self.folder.read_desired_here()
        if ended.outcome is Outcome.CANCELLED and desired is not None and desired.running:
            return f"; {resume_it(self.name)}"  # nobody has cancelled it: its supervisor died
        again = ended.outcome in (Outcome.STOPPED, Outcome.CANCELLED) and not is_drained(ended.reason)
        return f"; `{self._submit()}` starts it again" if again else ""

    def _submit(self) -> str:
        """Returns the command that starts the job again, as far as this machine knows how it was started."""
        launch = self.folder.read_launch()
        if launch is None or not launch.path:
            return "weir submit"
        named = "" if default_name(launch.path) == self.name else f" --name {self.name}"
        return f"weir submit {launch.path}{named}{' --param …' if launch.params else ''}"

    def _last_known(self) -> str:
        """Says what the supervisor showed last, and when. It may be dead: only its next sign tells."""
        now_ms = time.time_ns() // 1_000_000
        deaths, sign = self.folder.read_deaths(), self.folder.read_supervisor()
        died = f": {deaths.in_words(now_ms)}" if deaths is not None and deaths.in_a_row else ""
        if sign is None:
            return died
        return f"{died}; {max(0, now_ms - sign.at_ms) // 1000} s ago its supervisor showed: {sign.in_words()}"


def _unsettled(why: str) -> bool:
    """Says whether a savepoint or a stop failed only with its JobMaster, so that the next one decides."""
    return why == LOST or why.startswith(ENDED_FIRST)


class _Unknown(WeirError):
    """The JobMaster knows nothing of what was asked for."""


def resume_it(job: str) -> str:
    """Says how a job is started again that should be running."""
    return f"`weir resume {job}` starts it again"


def after_a_reboot(job: str) -> str:
    """Says how a job is started again if nobody knows whether any of its processes is left."""
    return f"after a reboot, {resume_it(job)}"


def pauses_s(first_s: float = 0.1, longest_s: float = 2.0) -> Iterator[float]:
    """Yields the pauses between two questions: short at first, and longer the longer something takes."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(longest_s, 1.5 * pause_s)


def no_such_job(store: str, job: str) -> str:
    """Says that a store has no such job, and which it has; or that the store itself is not there."""
    if is_missing(store):
        return f"there is no job {job!r}: the store {store} does not exist; name another with --store or WEIR_STORE"
    return f"there is no job {job!r} in the store {store}; it has: {', '.join(known_jobs(store)) or 'none'}"


def is_missing(store: str) -> bool:
    """Says whether the store is a directory that does not exist: of a bucket only its first use tells."""
    return not is_bucket(store) and not Path(store).exists()


def known_jobs(store: str) -> list[str]:
    """Returns the jobs that were ever started in this store; in a bucket on any machine."""
    here = {path.parent.parent.name for path in local_folder(store).glob("*/run/launch.json")}
    return sorted(here.union(shared_jobs(store) if is_bucket(store) else ()))
