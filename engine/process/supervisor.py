"""Keeps a JobMaster running: replaces one that dies or hangs by one of a higher generation, which goes on from the last
epoch. Shows in the run folder that the job is looked after, from the start on.

A JobMaster that ended on purpose leaves its `MasterExit` behind; anything else is a death. `engine/protocol/remedy.py`
decides which deaths end the job. A supervisor that slept while the job was started anew leaves the run folder alone.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from engine.host.launch import MasterLaunch, read_launch
from engine.host.lifeline import Listener
from engine.host.rotated import rotate_open
from engine.host.run_folder import Deaths, MasterExit, RunFolder, SupervisorSign
from engine.jobmaster.actions import Outcome
from engine.protocol.failures import Fault
from engine.protocol.remedy import Death, Stage, death_of
from engine.protocol.supervision import Supervision

STOP_PATIENCE_S = 20.0
LOOK_EVERY_S = 1.0
LOG_BYTES = 10 << 20
LOG_FILES = 3
POLL_S = 0.2

_LATER_START = MasterExit(Outcome.FENCED, "the job was started anew meanwhile")


class Supervisor:
    """`poll` is to be called several times a second. `on_crash` gets a line for each death; `jitter` is in [0, 1)."""

    def __init__(
        self, launch: MasterLaunch, on_crash: Callable[[str], None], jitter: Callable[[], float] = random.random
    ) -> None:
        self._launch = launch
        self._folder = RunFolder(launch.store, launch.name)
        self._on_crash = on_crash
        self._jitter = jitter
        self._supervision = Supervision(launch.jobmaster_timeout_s * 1000)
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: Listener | None = None
        self._words: Death | None = None
        self._died: Deaths | None = None
        self._not_before_s = 0.0
        self._look_s = 0.0
        self._stage: Stage | None = None
        self._stage_since_s = 0.0
        self._signs = 0

    def start(self) -> None:
        """Takes the run folder over and starts the first JobMaster. If the folder is this start's, `poll` does that."""
        self._folder.prepare(private=not self._launch.allow_shared_store)
        self._folder.clear()
        self._folder.forget_deaths()
        self._folder.write_launch(self._launch)
        self._start_process()

    def poll(self) -> MasterExit | None:
        """Replaces a JobMaster that died or hangs. Returns how the job ended once it has."""
        with contextlib.suppress(OSError):  # a log that can't be rotated must not end the job
            rotate_open(self._folder.log_file, LOG_BYTES, LOG_FILES)
        if self._process is not None:
            self._listen()
        self._give_sign()
        if self._process is None:
            return self._start_when_due()
        hung_s = self._supervision.hung_for_s(_now_ms())
        if hung_s is None and not _has_ended(self._process.pid):
            return None
        code = self._end_process(self._process)
        if (ended := self._left_outcome()) is not None:
            return ended
        return self._on_death(death_of(code, self._supervision.stage, self._words, hung_s))

    def stop(self) -> None:
        """Cancels the job, and kills a JobMaster that does not end by itself."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def master_pid(self) -> int | None:
        return self._process.pid if self._process else None

    # --- one JobMaster after the other ---

    def _start_when_due(self) -> MasterExit | None:
        try:
            if self._slept_through_a_start():
                return _LATER_START
            if self._unwanted():
                return MasterExit(Outcome.CANCELLED, "cancelled while no JobMaster ran")
            if time.monotonic() < self._not_before_s:
                return None
            self._folder.clear()
            self._start_process()
        except OSError as error:
            return self._on_death(Death(Fault.OUTSIDE, f"its process could not be started: {error}"))
        return None

    def _unwanted(self) -> bool:
        desired = self._folder.read_desired()
        return desired is not None and not desired.running and desired.launch.id == self._launch.id

    def _give_sign(self) -> None:
        """Once a second, says what the JobMaster does. Ends one that was cancelled before it could be asked."""
        now_s, process = time.monotonic(), self._process
        stage = None if process is None else self._supervision.stage or Stage.LOADING
        if stage is not self._stage:
            self._stage, self._stage_since_s = stage, now_s
        elif now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_EVERY_S
        self._signs += 1
        wall_ms, for_s = time.time_ns() // 1_000_000, int(now_s - self._stage_since_s)
        with contextlib.suppress(OSError):
            if self._folder.belongs_to(self._launch):
                self._folder.write_supervisor(SupervisorSign(self._launch.id, self._signs, wall_ms, stage, for_s))
            if process is not None and not _has_ended(process.pid) and self._unwanted():
                process.terminate()  # one that runs cancels itself, or again

    def _start_process(self) -> None:
        listener = Listener()
        try:
            with self._folder.log_file.open("ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "engine.process.master_main", *self._arguments()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=listener.environ,
                    pass_fds=[listener.descriptor],
                    start_new_session=True,  # Ctrl-C goes to the supervisor alone, which cancels the job
                )
        except OSError:
            listener.close()
            raise
        finally:
            listener.started()
        self._listener, self._words = listener, None
        self._supervision.on_start()

    def _arguments(self) -> list[str]:
        """Returns the launch file and whose it is: a later start may replace the file before it is read."""
        return [str(self._folder.launch_file), self._launch.id]

    def _listen(self) -> None:
        assert self._listener is not None
        row = self._supervision.in_a_row
        for sign in self._listener.heard():
            self._supervision.on_sign(sign.stage, sign.epoch)
            self._words = sign.words or self._words
        if row and not self._supervision.in_a_row and self._died is not None:
            self._remember(Death(self._died.fault, self._died.reason), self._died.at_ms, self._died.again_at_ms)

    def _end_process(self, process: subprocess.Popen[bytes]) -> int:
        """Ends what is left of a JobMaster: Spark's JVM in its process group, too, even if it is stopped."""
        if not _has_ended(process.pid):
            process.kill()
        # The process is not reaped yet, so its number still names its group. The JVM deletes its files and ends.
        for number in (signal.SIGTERM, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        code = process.wait()
        self._listen()
        assert self._listener is not None
        self._listener.close()
        self._process = self._listener = None
        return code

    def _left_outcome(self) -> MasterExit | None:
        try:
            return self._folder.read_exit()
        except OSError:
            return None  # its last words say the same

    def _on_death(self, death: Death) -> MasterExit | None:
        if self._slept_through_a_start():
            return _LATER_START
        now_ms = _now_ms()
        delay_ms = self._supervision.on_death(death, now_ms, self._jitter())
        if delay_ms is None:
            return MasterExit(Outcome.FAILED, death.reason)
        wall_ms = time.time_ns() // 1_000_000
        self._remember(death, wall_ms, wall_ms + int(delay_ms))
        with contextlib.suppress(OSError):
            self._folder.forget_address()
        self._on_crash(f"the JobMaster died ({death.reason}); starting another{_in(delay_ms)}")
        self._not_before_s = (now_ms + delay_ms) / 1000
        return None

    def _slept_through_a_start(self) -> bool:
        """Says whether the run folder belongs to a later start of the job; nothing in it may be touched then."""
        try:
            return not self._folder.belongs_to(self._launch)
        except OSError:
            return False  # nobody can tell now; the JobMaster looks again before it claims the job

    def _remember(self, death: Death, at_ms: int, again_at_ms: int) -> None:
        counts = self._supervision.deaths, self._supervision.in_a_row
        self._died = Deaths(*counts, death.fault, death.reason, at_ms, again_at_ms)
        with contextlib.suppress(OSError):  # the store may be what fails
            self._folder.write_deaths(self._died)


def _in(delay_ms: float) -> str:
    return f" in {delay_ms / 1000:.0f} s" if delay_ms >= 1000 else ""


def _now_ms() -> float:
    return time.monotonic() * 1000


def _has_ended(pid: int) -> bool:
    """Says whether a child has ended, and leaves it unreaped: its number still names its process group."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # `stop` has reaped it
        return True


def main() -> None:
    """`python -m engine.process.supervisor LAUNCH ID` is a supervisor in a process of its own, for `weir submit`.

    `ID` names the start that it belongs to. If the file LAUNCH is of a later start, that one has a supervisor.
    """
    launch = read_launch(sys.argv[1])
    if launch.id != sys.argv[2]:
        return
    folder = RunFolder(launch.store, launch.name)

    def crashed(what: str) -> None:
        with contextlib.suppress(OSError), folder.log_file.open("a") as output:
            output.write(what + "\n")

    supervisor = Supervisor(launch, crashed)

    def terminate(*_: object) -> None:
        supervisor.stop()
        os._exit(0)

    signal.signal(signal.SIGTERM, terminate)
    while (ended := supervisor.poll()) is None:
        time.sleep(POLL_S)
    while not _written(folder, ended, launch):
        time.sleep(POLL_S)


def _written(folder: RunFolder, ended: MasterExit, launch: MasterLaunch) -> bool:
    try:
        folder.write_exit(ended, launch)
    except OSError:
        return False  # a full or failing store; without the file nobody would know that the job has ended
    return True


if __name__ == "__main__":
    main()
