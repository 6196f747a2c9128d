"""`JobClient` talks to a running JobMaster over HTTP. It finds the JobMaster by the run folder in the store."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from engine.core.errors import Ending, NotRunning, WeirError
from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster.status import CheckpointStatus, JobStatus
from engine.observe.history import History
from engine.observe.timeline import CheckpointDetail, Timeline


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

    def cancel(self, by: str = "cli") -> None:
        """Ends the job. If it is not running, keeps it from being started again, and raises `NotRunning`.

        While its JobMaster is being replaced there is nobody to ask: the supervisor sees that it should stop.
        """
        self.folder.want_stopped(by)
        try:
            self._call("POST", "/cancel")
        except NotRunning:
            if not self.being_replaced():
                raise

    def wait_until_running(self, timeout_s: float | None = None) -> MasterExit | None:
        """Waits until records can flow. If the job ends before that, returns how."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while deadline is None or time.monotonic() < deadline:
            ended = self.ended()
            if ended is not None:
                return ended
            try:
                if self.status().running:
                    return None
            except NotRunning:
                pass
            time.sleep(0.2)
        raise WeirError(f"job {self.name!r} is not running after {timeout_s:.0f} s; its log is {self.folder.log_file}")

    def wait_until_ended(self, timeout_s: float | None = None) -> MasterExit | None:
        """Waits until the job has ended and returns how, or None if its JobMaster died without an outcome."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while deadline is None or time.monotonic() < deadline:
            ended = self.ended()
            if ended is not None or not (self.alive() or self.being_replaced()):
                return ended
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

    def being_replaced(self) -> bool:
        """Says whether the job is between two JobMasters: one died, and its supervisor starts the next."""
        deaths = self.folder.read_deaths()
        return (
            deaths is not None and deaths.in_a_row > 0 and self.ended() is None and self.folder.read_address() is None
        )

    def _call(self, method: str, path: str) -> httpx.Response:
        address = self.folder.read_address()
        if address is None:
            raise NotRunning(self._why_not())
        headers = {"authorization": f"Bearer {address.token}"}
        try:
            response = httpx.request(method, address.url + path, headers=headers, timeout=15)
        except httpx.TransportError as error:
            raise NotRunning(self._why_not()) from error
        if response.status_code == 503:
            raise Ending(response.json()["error"])
        if response.status_code >= 400:
            raise WeirError(response.json().get("error", f"HTTP {response.status_code}"))
        return response

    def _why_not(self) -> str:
        ended = self.folder.read_exit()
        if ended is not None:
            return f"job {self.name!r} is not running: it is {ended.outcome} ({ended.reason})"
        if self.being_replaced() and (deaths := self.folder.read_deaths()) is not None:
            words = deaths.in_words(time.time_ns() // 1_000_000)
            return f"job {self.name!r} is not running now: {words}; the log is {self.folder.log_file}"
        known = known_jobs(self.store)
        if self.name not in known:
            return f"there is no job {self.name!r} in the store {self.store}; it has: {', '.join(known) or 'none'}"
        return f"job {self.name!r} is not running; its last log is {self.folder.log_file}"


def known_jobs(store: str) -> list[str]:
    return sorted(path.parent.parent.name for path in Path(store).glob("*/run/launch.json"))
