"""`JobClient` talks to a running JobMaster over HTTP. It finds the JobMaster by the run folder in the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from engine.core.errors import Ending, NotRunning, WeirError
from engine.host.run_folder import Deaths, MasterExit, RunFolder
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

        While its JobMaster starts there is nobody to ask: the supervisor sees that it should stop.
        """
        self.folder.want_stopped(by)
        try:
            self._call("POST", "/cancel")
        except Ending:
            return  # the supervisor was faster
        except NotRunning:
            if self.folder.live_supervisor() is None:
                raise

    def wait_until_running(
        self, timeout_s: float | None = None, on_death: Callable[[Deaths], None] = lambda deaths: None
    ) -> MasterExit | None:
        """Waits until records can flow. If the job ends before that, returns how. `on_death` gets each death."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        seen = 0
        while deadline is None or time.monotonic() < deadline:
            ended = self.ended()
            if ended is not None:
                return ended
            deaths = self.folder.read_deaths()
            if deaths is not None and deaths.total > seen:
                seen = deaths.total
                on_death(deaths)
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
        known = known_jobs(self.store)
        if self.name not in known:
            return f"there is no job {self.name!r} in the store {self.store}; it has: {', '.join(known) or 'none'}"
        return f"job {self.name!r} is not running now{self._last_known()}; its log is {self.folder.log_file}"

    def _last_known(self) -> str:
        """Says what the supervisor showed last, and when. It may be dead: only its next sign tells."""
        now_ms = time.time_ns() // 1_000_000
        deaths, sign = self.folder.read_deaths(), self.folder.read_supervisor()
        died = f": {deaths.in_words(now_ms)}" if deaths is not None and deaths.in_a_row else ""
        if sign is None:
            return died
        return f"{died}; {max(0, now_ms - sign.at_ms) // 1000} s ago its supervisor showed: {sign.in_words()}"


def known_jobs(store: str) -> list[str]:
    return sorted(path.parent.parent.name for path in Path(store).glob("*/run/launch.json"))
