"""The folder `<store>/<job>/run/`, in which the processes of a job find each other. Only its owner can read it.

The file `<store>/<job>/desired.json` beside it says whether the job should be running, by the last request of CLI, HTTP
or Dagster.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from engine.core.names import check_name
from engine.host.folders import PRIVATE
from engine.host.launch import MasterLaunch
from engine.jobmaster.actions import Outcome
from engine.protocol.failures import Fault, Raised
from engine.protocol.remedy import Stage

T = TypeVar("T")

SIGN_PATIENCE_S = 4.0
"""A supervisor gives a sign every second. One whose sign stays the same for this long is dead."""


class MasterAddress(msgspec.Struct, frozen=True):
    """The address at which a running JobMaster answers, and the token that it asks for. Each JobMaster has others."""

    url: str
    pid: int
    generation: int
    token: str


class MasterExit(msgspec.Struct, frozen=True):
    """The end of a JobMaster: its outcome, and why. `raised` is there if the job's own code raised an error."""

    outcome: Outcome
    reason: str
    raised: Raised | None = None


class LastHeartbeat(msgspec.Struct, frozen=True):
    """The deciding thread writes it every second. Its age shows that a JobMaster hangs, while its pid would not."""

    at_ms: int
    generation: int
    phase: str


class Deaths(msgspec.Struct, frozen=True):
    """The JobMasters that died since the job was started. Its supervisor writes it.

    `in_a_row` died without an epoch in between; `reason` and `at_ms` are those of the last death. The next JobMaster is
    started at `again_at_ms`.
    """

    total: int
    in_a_row: int
    fault: Fault
    reason: str
    at_ms: int
    again_at_ms: int

    def in_words(self, now_ms: int) -> str:
        times = f"{self.in_a_row} times without an epoch in between" if self.in_a_row > 1 else "once"
        whose = " (a defect of Weir; please report it)" if self.fault is Fault.WEIR else ""
        wait_s = max(0, self.again_at_ms - now_ms) / 1000
        then = f"; the next one starts in {wait_s:.0f} s" if wait_s >= 1 else ""
        return f"the JobMaster died {times}, last by: {self.reason}{whose}{then}"


class SupervisorSign(msgspec.Struct, frozen=True):
    """A supervisor writes it every second, also while its JobMaster starts. A sign that changes is a live supervisor.

    `stage` is what its JobMaster does, for `for_s` seconds by now; None: none runs, and the next one has to wait.
    """

    launch_id: str
    number: int
    at_ms: int
    stage: Stage | None
    for_s: int

    def in_words(self) -> str:
        return f"{self.stage.value} for {self.for_s} s" if self.stage is not None else "waiting before the next start"


class Desired(msgspec.Struct, frozen=True):
    """Says whether the job should be running. If it should and does not, it may be started again with `launch`."""

    running: bool
    launch: MasterLaunch
    by: str
    at_ms: int


class RunFolder:
    def __init__(self, store: str | Path, job: str) -> None:
        self.folder = Path(store).absolute() / check_name("job", job) / "run"
        self.log_file = self.folder / "master.log"
        """Holds what the JobMaster process and Spark print. `logs` holds what the job's own code prints."""
        self.logs = self.folder / "logs"
        self.launch_file = self.folder / "launch.json"
        self._address = self.folder / "master.json"
        self._targets = self.folder / "targets.json"
        self._exit = self.folder / "exit.json"
        self._heartbeat = self.folder / "heartbeat.json"
        self._deaths = self.folder / "deaths.json"
        self._supervisor = self.folder / "supervisor.json"
        self._token = self.folder / "token"
        self._desired = self.folder.parent / "desired.json"

    def prepare(self, *, private: bool = True) -> None:
        """Makes the folder. `private`: only the job's user can enter the job's folder above it, whatever the umask."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if private:
            self.folder.parent.chmod(PRIVATE)
        self.folder.chmod(PRIVATE)

    def write_launch(self, launch: MasterLaunch) -> Path:
        _write(self.launch_file, msgspec.json.format(msgspec.json.encode(launch)), durable=True)
        return self.launch_file

    def read_launch(self) -> MasterLaunch | None:
        return _read(self.launch_file, MasterLaunch)

    def belongs_to(self, launch: MasterLaunch) -> bool:
        last = self.read_launch()
        return last is None or last.id == launch.id

    def write_address(self, address: MasterAddress) -> None:
        """Writes the address. Prometheus reads the token and the discovery target: each JobMaster has another port."""
        _write(self._token, address.token.encode())
        _write(self._address, msgspec.json.encode(address))
        _write(self._targets, msgspec.json.encode([{"targets": [urlsplit(address.url).netloc]}]))

    def read_address(self) -> MasterAddress | None:
        return _read(self._address, MasterAddress)

    def write_exit(self, end: MasterExit, launch: MasterLaunch) -> None:
        """Does nothing if the JobMaster was fenced or slept through a later start: its successor owns the folder."""
        if end.outcome is Outcome.FENCED or not self.belongs_to(launch):
            return
        _write(self._exit, msgspec.json.encode(end), durable=True)
        self.forget_address()

    def read_exit(self) -> MasterExit | None:
        return _read(self._exit, MasterExit)

    def write_heartbeat(self, heartbeat: LastHeartbeat) -> None:
        _write(self._heartbeat, msgspec.json.encode(heartbeat))

    def read_heartbeat(self) -> LastHeartbeat | None:
        return _read(self._heartbeat, LastHeartbeat)

    def write_deaths(self, deaths: Deaths) -> None:
        _write(self._deaths, msgspec.json.encode(deaths))

    def read_deaths(self) -> Deaths | None:
        return _read(self._deaths, Deaths)

    def write_supervisor(self, sign: SupervisorSign) -> None:
        _write(self._supervisor, msgspec.json.encode(sign))

    def read_supervisor(self) -> SupervisorSign | None:
        """Returns the last sign of the supervisor that the folder belongs to. It may be dead by now."""
        sign, launch = _read(self._supervisor, SupervisorSign), self.read_launch()
        return sign if sign is not None and launch is not None and sign.launch_id == launch.id else None

    def live_supervisor(self) -> SupervisorSign | None:
        """Waits for the next sign of the supervisor, and returns it; None: it is dead, or the job has ended.

        Compares two signs and no clocks: the machine may have slept, and its time may have been set.
        """
        first, deadline_s = self.read_supervisor(), time.monotonic() + SIGN_PATIENCE_S
        while first is not None and self.read_exit() is None and time.monotonic() < deadline_s:
            sign = self.read_supervisor()
            if sign != first:
                return sign
            time.sleep(0.1)
        return None

    def forget_deaths(self) -> None:
        self._deaths.unlink(missing_ok=True)

    def clear(self) -> None:
        """Prepares the folder for a start. The last heartbeat stays: its age says how long no JobMaster has run."""
        self._exit.unlink(missing_ok=True)
        self.forget_address()
        for nonce in self.folder.glob("nonce-*"):  # of a JobMaster that died
            nonce.unlink(missing_ok=True)

    def forget_address(self) -> None:
        self._address.unlink(missing_ok=True)
        self._targets.unlink(missing_ok=True)
        self._token.unlink(missing_ok=True)

    def want_running(self, launch: MasterLaunch, by: str) -> None:
        self._write_desired(Desired(True, launch, by, _now_ms()))

    def want_stopped(self, by: str) -> None:
        """Keeps the job from being started again, whether or not it runs now."""
        desired = self.read_desired()
        if desired is not None and desired.running:
            self._write_desired(Desired(False, desired.launch, by, _now_ms()))

    def read_desired(self) -> Desired | None:
        return _read(self._desired, Desired)

    def _write_desired(self, desired: Desired) -> None:
        _write(self._desired, msgspec.json.format(msgspec.json.encode(desired)), durable=True)


def _write(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Writes the whole file or nothing. Other users can never read it. `durable`: a power cut leaves it whole, too."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(descriptor)
    temporary.replace(path)


def _read(path: Path, kind: type[T]) -> T | None:
    """Returns None also for a file that is not what was written, as a power cut may leave it. The next one is whole."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
