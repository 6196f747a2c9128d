"""The folder `<store>/<job>/run/`, in which the processes of a job find each other. Only its owner can read it.

The file `<store>/<job>/desired.json` beside it says whether the job should be running, by the last request of CLI, HTTP
or Dagster.

If the store is a bucket, both lie in a folder of this machine (`engine/host/places.py`), and the bucket has the last
start and what is desired too (`engine/host/starts.py`), so that other machines know of them. Invariant: what is asked
here is written to the bucket first. So the JobMaster that copies news of the bucket never copies an older start.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from engine.core.errors import StoreError
from engine.core.names import check_name
from engine.core.paths import JobPaths
from engine.host.folders import PRIVATE
from engine.host.launch import MasterLaunch
from engine.host.locks import held
from engine.host.places import local_folder
from engine.host.rehearsal_request import RehearsalRequest
from engine.host.starts import Desired, Start, shared_start
from engine.host.upgrade_record import UpgradeRecord
from engine.host.upgrade_request import UpgradeRequest
from engine.jobmaster.actions import Outcome
from engine.protocol.failures import Fault, Raised
from engine.protocol.remedy import Stage
from engine.protocol.scaling import Scaling
from engine.protocol.supervision import Silence
from engine.protocol.upgrading import cancelled
from engine.store.bucket import is_bucket

T = TypeVar("T")

SIGN_PATIENCE_S = 4.0
"""A supervisor gives a sign every second. One whose sign stays the same for this long is dead."""
LOOK_EVERY_S = 0.1
LOOK_MS = 500.0
"""A look at the supervisor counts for this long at most, however late it comes."""


class MasterAddress(msgspec.Struct, frozen=True):
    """The address at which a running JobMaster answers, and the token that it asks for. Each JobMaster has others.

    `process` is its process as `engine/host/processes.py` names it; a pid alone may be another's by now.
    """

    url: str
    pid: int
    generation: int
    token: str
    process: str = ""


class MasterExit(msgspec.Struct, frozen=True):
    """The end of a JobMaster: its outcome, and why. `raised` is there if the job's own code raised an error."""

    outcome: Outcome
    reason: str
    raised: Raised | None = None


class _ExitFile(MasterExit, frozen=True):
    """The end, and the start that it is the end of. Files of earlier versions of Weir do not name the start."""

    launch_id: str = ""


class _CancelledUpgrade(msgspec.Struct, frozen=True):
    """A user has cancelled the job while this upgrade was under way."""

    id: str
    by: str


class LastHeartbeat(msgspec.Struct, frozen=True):
    """The deciding thread writes it every second. Its age shows that a JobMaster hangs, while its pid would not.

    `begun_by`: the start that is known to have begun the job's log; empty as long as none has.
    """

    at_ms: int
    generation: int
    phase: str
    begun_by: str = ""


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


class StandbySign(msgspec.Struct, frozen=True):
    """What the standby of a job does, for `for_s` seconds by now; `stage` is None while there is none.

    `deaths` standbys died before one was ready, the last one because of `reason`.
    """

    stage: Stage | None
    for_s: int
    deaths: int = 0
    reason: str = ""

    @property
    def ready(self) -> bool:
        return self.stage is Stage.STANDING_BY

    def in_words(self) -> str:
        if self.ready:
            return f"ready for {self.for_s} s"
        now = f"{self.stage.value} for {self.for_s} s" if self.stage is not None else "none now"
        times = f"{self.deaths} of them died, the last one by" if self.deaths > 1 else "the last one died by"
        return f"{now}; {times}: {self.reason}" if self.deaths else now


class SupervisorSign(msgspec.Struct, frozen=True):
    """A supervisor writes it every second, also while its JobMaster starts. A sign that changes is a live supervisor.

    `stage` is what its JobMaster does, for `for_s` seconds by now; None: none runs, and the next one has to wait.
    `standby` is None if the job was started without one.
    """

    launch_id: str
    number: int
    at_ms: int
    stage: Stage | None
    for_s: int
    standby: StandbySign | None = None

    def in_words(self) -> str:
        return f"{self.stage.value} for {self.for_s} s" if self.stage is not None else "waiting before the next start"


class RunFolder:
    def __init__(self, store: str | Path, job: str) -> None:
        self.folder = local_folder(store) / check_name("job", job) / "run"
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
        self._upgrade = self.folder.parent / "upgrade.json"
        self._cancelled_upgrade = self.folder.parent / "upgrade-cancelled.json"
        self._upgrade_request = self.folder.parent / "upgrade-request.json"
        self.upgrade_lock = self.folder / "upgrade.lock"
        """Held by whoever checks or carries out an upgrade of the job."""
        self._rehearsal_request = self.folder.parent / "rehearsal-request.json"
        self.rehearsal_lock = self.folder / "rehearsal.lock"
        """Held by the process of a rehearsal that was asked for over HTTP."""
        self._elsewhere = self.folder / "elsewhere.json"
        self._shared = shared_start(store, job) if is_bucket(store) else None
        paths = JobPaths(job)
        self.sign = paths.shared_launch() if is_bucket(store) else paths.launch()
        """The path in the store of the last start. A store without this file is not the one that the job began in."""

    def prepare(self, *, private: bool = True) -> None:
        """Makes the folder. `private`: only the job's user can enter the job's folder above it, whatever the umask."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if private:
            self.folder.parent.chmod(PRIVATE)
        self.folder.chmod(PRIVATE)
        if self._shared is not None:
            self._shared.forget_nonces()

    def begin(self, launch: MasterLaunch) -> Path:
        """Makes the folder that of this start, and returns the launch file.

        That file comes first: it tells processes of an earlier start that what is missing then is not theirs any more.
        """
        path = self.write_launch(launch)
        self.clear()
        self.forget_deaths()
        return path

    def write_launch(self, launch: MasterLaunch) -> Path:
        if self._shared is not None:
            self._shared.write(Start(launch, socket.gethostname()))
        self._write_launch_here(launch)
        return self.launch_file

    def _write_launch_here(self, launch: MasterLaunch) -> None:
        _write(self.launch_file, msgspec.json.format(msgspec.json.encode(launch)), durable=True)

    def read_launch(self) -> MasterLaunch | None:
        return _read(self.launch_file, MasterLaunch)

    def mend_launch(self, launch: MasterLaunch) -> None:
        """Writes the launch file again if it is lost or damaged: no JobMaster could start without it.

        `desired.json` repeats the start with the parallelism of the last rescale, which `launch` may be too old for.
        """
        if self.read_launch() is None:
            desired = self.read_desired_here()
            if desired is not None and desired.launch.id == launch.id:
                launch = desired.launch
            self._write_launch_here(launch)

    def belongs_to(self, launch: MasterLaunch) -> bool:
        last = self.read_launch()
        return last is None or last.id == launch.id

    def hear_elsewhere(self, launch: MasterLaunch) -> None:
        """Copies a later start, or a later wish to stop, from the bucket into this folder, where all look for them.

        The JobMaster calls this. It may take long, and raises a StoreError if the bucket does not answer.
        """
        if self._shared is None:
            return
        start, desired = self._shared.read(), self._shared.read_desired()
        if start is not None and start.launch.id != launch.id and self.belongs_to(launch):
            self._write_launch_here(start.launch)
            _write(self._elsewhere, msgspec.json.encode(start))
            # The job is wanted there and not here: nobody on this machine may start it again.
            self._write_desired(Desired(False, launch, f"a start on {start.host}", _now_ms()))
        if desired is not None and not desired.running and desired.launch.id == launch.id:
            self._write_desired(desired)

    def heard_elsewhere(self) -> str | None:
        """Returns the machine of the last start if a JobMaster of this one has heard that it is another."""
        start = _read(self._elsewhere, Start)
        return start.host if start is not None else None

    def started_elsewhere(self) -> str | None:
        """Returns the machine of the last start if it is not this one. It asks the bucket."""
        start = self._shared.read() if self._shared is not None else None
        here = self.read_launch()
        if start is None or (here is not None and here.id == start.launch.id):
            return self.heard_elsewhere()
        return start.host

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
        of_start = _ExitFile(end.outcome, end.reason, end.raised, launch.id)
        _write(self._exit, msgspec.json.encode(of_start), durable=True)
        self.forget_address()

    def read_exit(self) -> MasterExit | None:
        """Returns how the last start of the job ended. That of an earlier one may be written late, and says nothing."""
        end, launch = _read(self._exit, _ExitFile), self.read_launch()
        if end is None or (launch is not None and end.launch_id not in ("", launch.id)):
            return None
        return MasterExit(end.outcome, end.reason, end.raised)

    def write_heartbeat(self, heartbeat: LastHeartbeat) -> None:
        _write(self._heartbeat, msgspec.json.encode(heartbeat))

    def read_heartbeat(self) -> LastHeartbeat | None:
        return _read(self._heartbeat, LastHeartbeat)

    def has_begun(self, launch: MasterLaunch) -> bool:
        """Says whether a JobMaster of this start has claimed the job. If there is no log then, the store is away."""
        heartbeat = self.read_heartbeat()
        return heartbeat is not None and heartbeat.begun_by == launch.id

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

        Compares two signs and no clocks: the machine may have slept, and its time may have been set. The time in which
        this process itself stood still does not count: the supervisor had no turn then, either.
        """
        first, silence = self.read_supervisor(), Silence(LOOK_MS)
        while first is not None and self.read_exit() is None:
            if silence.look(time.monotonic() * 1000) >= SIGN_PATIENCE_S * 1000:
                return None
            sign = self.read_supervisor()
            if sign != first:
                return sign
            time.sleep(LOOK_EVERY_S)
        return None

    def forget_deaths(self) -> None:
        self._deaths.unlink(missing_ok=True)

    def clear(self) -> None:
        """Prepares the folder for a start. The last heartbeat stays: its age says how long no JobMaster has run."""
        self._exit.unlink(missing_ok=True)
        self._elsewhere.unlink(missing_ok=True)
        self.forget_address()
        self.forget_nonces()

    def forget_nonces(self, but: str = "") -> None:
        """Deletes what JobMasters that died have left. A standby has one of its own."""
        for nonce in self.folder.glob("nonce-*"):
            if nonce.name != but:
                nonce.unlink(missing_ok=True)

    def forget_address(self) -> None:
        self._address.unlink(missing_ok=True)
        self._targets.unlink(missing_ok=True)
        self._token.unlink(missing_ok=True)

    def want_running(self, launch: MasterLaunch, by: str) -> None:
        desired = Desired(True, launch, by, _now_ms())
        self._share(desired)
        self._write_desired(desired)

    def want_stopped(self, by: str) -> None:
        """Keeps the job from being started again, whether or not it runs now.

        An upgrade on another machine may be between its two versions. It hears of this before it starts one.
        """
        desired = self._read_desired_there()
        elsewhere = self.started_elsewhere() is not None
        if desired is not None and (desired.running or elsewhere):
            stopped = Desired(False, desired.launch, by, _now_ms(), socket.gethostname() if elsewhere else "")
            self._share(stopped)
            if self.read_desired_here() is not None:  # this machine may never have had the job
                self._write_desired(stopped)

    def cancelled_elsewhere(self) -> str | None:
        """Returns who has cancelled the last start on another machine; None: nobody, or the store is no bucket."""
        desired = self._shared.read_desired() if self._shared is not None else None
        if desired is None or desired.running or desired.host in ("", socket.gethostname()):
            return None
        return f"{desired.by} on {desired.host}"

    def want_stopped_here(self, by: str) -> None:
        """Does what `want_stopped` does, without the bucket: `share_desired` tells it, and may take long.

        Raises a StoreError if it can't be written: whoever cancels must not go on, or the next boot would undo it.
        """
        desired = self.read_desired_here()
        if desired is None or not desired.running:
            return
        try:
            self._write_desired(Desired(False, desired.launch, by, _now_ms()))
        except OSError as error:
            raise StoreError(
                f"job {desired.launch.name!r} can't be cancelled: {self._desired} can't be written ({error.strerror}), "
                "so the next boot would start the job again. Make room, or mend what is wrong there, and cancel again"
            ) from error

    def share_desired(self) -> None:
        """Tells the bucket what this machine knows, unless another one has started the job since."""
        here, there = self.read_desired_here(), self._read_desired_there()
        if here is not None and (there is None or there.launch.id == here.launch.id):
            self._share(here)

    def rescaled(self, launch: MasterLaunch, scaling: Scaling) -> None:
        """Makes every later JobMaster of this start, and who starts the job again as it was, begin at this scaling.

        The file that JobMasters are started with is written first: it decides, so this raises only if that one is not
        written. If the other one can't be, or the machine stops before, the next JobMaster writes it. The last start
        that a bucket knows stays as it is: it may be another machine's by now.
        """
        launch = msgspec.structs.replace(launch, scaling=scaling)
        self.hear_elsewhere(launch)
        if self.belongs_to(launch):
            self._write_launch_here(launch)
            with contextlib.suppress(OSError, StoreError):
                self.repeat_launch(launch)

    def repeat_launch(self, launch: MasterLaunch) -> None:
        """Makes `desired.json` say the same as the file that this JobMaster was started with."""
        desired = self.read_desired_here()
        if desired is not None and desired.launch.id == launch.id and desired.launch != launch:
            self._write_desired(Desired(desired.running, launch, desired.by, desired.at_ms))
            self.share_desired()

    def read_desired(self) -> Desired | None:
        """Returns the last wish. If the store is a bucket, this asks it: another machine may have had the last.

        A start that was stopped is never wanted again. So a wish to stop it that is known here counts, also if the
        bucket was away when it was told.
        """
        here, there = self.read_desired_here(), self._read_desired_there()
        stopped = here is not None and not here.running and there is not None and here.launch.id == there.launch.id
        return here if stopped else there

    def _read_desired_there(self) -> Desired | None:
        """Returns what all machines know."""
        return self._shared.read_desired() if self._shared is not None else self.read_desired_here()

    def read_desired_here(self) -> Desired | None:
        """Returns what this machine knows. It never waits: the JobMaster copies news of the bucket here."""
        return _read(self._desired, Desired)

    def write_upgrade(self, record: UpgradeRecord) -> None:
        _write(self._upgrade, msgspec.json.format(msgspec.json.encode(record)), durable=True)

    def read_upgrade(self) -> UpgradeRecord | None:
        """Returns the last upgrade of the job, done or not; None: there was none."""
        return _read(self._upgrade, UpgradeRecord)

    def cancel_upgrade(self, by: str) -> bool:
        """Keeps an upgrade that is not over from starting any version. Returns False if there is none.

        Between the two versions nobody else could be told. Raises a StoreError if it can't be written.
        """
        record = self.read_upgrade()
        if record is None or record.progress.phase.over:
            return False
        try:
            _write(self._cancelled_upgrade, msgspec.json.encode(_CancelledUpgrade(record.id, by)), durable=True)
        except OSError as error:
            raise StoreError(
                f"the upgrade of {record.old.name!r} can't be cancelled: {error.filename} can't be written "
                f"({error.strerror}), so it would start the job again. Make room, and cancel again"
            ) from error
        return True

    def upgrade_is_cancelled(self, id: str) -> bool:
        found = _read(self._cancelled_upgrade, _CancelledUpgrade)
        return found is not None and found.id == id

    def settle_cancelled_upgrade(self, epoch: int) -> None:
        """Ends an upgrade that was cancelled, once no version runs or is to, unless a command carries it out.

        `epoch`: the job's newest. If it can't be written now, who carries the upgrade on ends it: that it was cancelled
        is written already.
        """
        with held(self.upgrade_lock) as taken:
            record = self.read_upgrade()
            if not taken or record is None or record.progress.phase.over or not self.upgrade_is_cancelled(record.id):
                return
            launch = self.read_launch()
            upgraded = launch is not None and record.has_taken_over(launch.id, epoch)
            progress = cancelled(record.progress, upgraded=upgraded)
            over = msgspec.structs.replace(record, progress=progress, changed_ms=_now_ms())
            with contextlib.suppress(OSError):
                self.write_upgrade(over)

    def write_upgrade_request(self, request: UpgradeRequest) -> None:
        _write(self._upgrade_request, msgspec.json.format(msgspec.json.encode(request)))

    def read_upgrade_request(self) -> UpgradeRequest | None:
        """Returns the last upgrade that was asked for over HTTP, unless another one was begun since."""
        return _read(self._upgrade_request, UpgradeRequest)

    def forget_upgrade_request(self) -> None:
        self._upgrade_request.unlink(missing_ok=True)

    def write_rehearsal_request(self, request: RehearsalRequest) -> None:
        _write(self._rehearsal_request, msgspec.json.format(msgspec.json.encode(request)))

    def read_rehearsal_request(self) -> RehearsalRequest | None:
        """Returns the last rehearsal that was asked for over HTTP."""
        return _read(self._rehearsal_request, RehearsalRequest)

    def forget_rehearsal_request(self) -> None:
        self._rehearsal_request.unlink(missing_ok=True)

    def _share(self, desired: Desired) -> None:
        if self._shared is not None:
            self._shared.write_desired(desired)

    def _write_desired(self, desired: Desired) -> None:
        _write(self._desired, msgspec.json.format(msgspec.json.encode(desired)), durable=True)


def _write(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Writes the whole file or nothing. Other users can never read it. `durable`: a power cut leaves it whole, too.

    Threads of a process may write the same file at once, each by way of a file of its own.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(descriptor)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk does not say where


def _read(path: Path, kind: type[T]) -> T | None:
    """Returns None also for a file that is not what was written, as a power cut may leave it. The next one is whole."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
