"""Keeps a JobMaster running: replaces one that dies or hangs by one of a higher generation, which goes on from the last
epoch. If the job has a standby, that one takes over. Shows in the run folder that the job is looked after, from the
start on.

A JobMaster that ended on purpose leaves its `MasterExit` behind; anything else is a death. `engine/protocol/remedy.py`
decides which deaths end the job. A supervisor that slept while the job was started anew leaves the run folder alone.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from engine.core.errors import StoreError
from engine.host.launch import MasterLaunch, read_launch
from engine.host.locks import is_held
from engine.host.rotated import rotate_open
from engine.host.run_folder import Deaths, MasterExit, RunFolder, SupervisorSign
from engine.jobmaster.actions import Outcome
from engine.process.child import MasterChild
from engine.process.standby import StandbyKeeper
from engine.process.upgrade import for_this_start
from engine.protocol.failures import Fault
from engine.protocol.remedy import Death, Stage, death_of
from engine.protocol.supervision import Supervision
from engine.spark.archive import ArchiveMaker

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
        self._master: MasterChild | None = None
        self._standby = StandbyKeeper(self._start_child, launch.jobmaster_timeout_s, jitter) if launch.standby else None
        self._archive = ArchiveMaker()
        self._died: Deaths | None = None
        self._not_before_s = 0.0
        self._look_s = 0.0
        self._stage: Stage | None = None
        self._stage_since_s = 0.0
        self._signs = 0

    def start(self) -> None:
        """Takes the run folder over and starts the first JobMaster. If the folder is this start's, `poll` does that."""
        self._folder.prepare(private=not self._launch.allow_shared_store)
        self._launch = for_this_start(self._launch)
        self._folder.begin(self._launch)
        self._start_process()

    def poll(self) -> MasterExit | None:
        """Replaces a JobMaster that died or hangs. Returns how the job ended once it has."""
        with contextlib.suppress(OSError):  # a log that can't be rotated must not end the job
            rotate_open(self._folder.log_file, LOG_BYTES, LOG_FILES)
        ended = self._poll_master()
        if ended is not None:
            self._archive.end()
        else:
            self._archive.poll(running=self._master is not None and self._supervision.stage is Stage.DECIDING)
        if self._standby is not None:
            if ended is not None:
                self._standby.end()
            else:
                self._standby.poll(self._supervision.stage if self._master is not None else None)
        return ended

    def stop(self) -> None:
        """Cancels the job, and kills a JobMaster that does not end by itself."""
        self._archive.end()
        if self._standby is not None:
            self._standby.end()
        master = self._master
        if master is None or master.ended:
            return
        master.terminate()
        if not master.wait(STOP_PATIENCE_S):
            master.end()

    @property
    def master_pid(self) -> int | None:
        return self._master.pid if self._master else None

    @property
    def standby_pid(self) -> int | None:
        return self._standby.pid if self._standby else None

    # --- one JobMaster after the other ---

    def _poll_master(self) -> MasterExit | None:
        if self._master is not None:
            self._listen(self._master)
        self._give_sign()
        if self._master is None:
            return self._start_when_due()
        hung_s = self._supervision.hung_for_s(_now_ms())
        if hung_s is None and not self._master.ended:
            return None
        master = self._master
        code = self._end_process(master)
        if (ended := self._left_outcome(master)) is not None:
            return ended
        return self._on_death(death_of(code, self._supervision.stage, master.words, hung_s)) or self._start_when_due()

    def _start_when_due(self) -> MasterExit | None:
        try:
            if self._slept_through_a_start():
                return _LATER_START
            if self._unwanted():
                return MasterExit(Outcome.CANCELLED, "cancelled while no JobMaster ran")
            if time.monotonic() < self._not_before_s:
                return None
            if self._standby is not None and (standby := self._standby.take()) is not None:
                self._take_over(standby)
                return None
            self._folder.clear()
            self._start_process()
        except OSError as error:
            return self._on_death(Death(Fault.OUTSIDE, f"its process could not be started: {error}"))
        return None

    def _unwanted(self) -> bool:
        """Says whether the job was cancelled, or the command that needs it was killed and holds its leash no more."""
        if self._launch.leash and not is_held(Path(self._launch.leash)):
            return True
        desired = self._folder.read_desired_here()
        return desired is not None and not desired.running and desired.launch.id == self._launch.id

    def _give_sign(self) -> None:
        """Once a second, says what the JobMaster does. Ends one that was cancelled before it could be asked."""
        now_s, master = time.monotonic(), self._master
        stage = None if master is None else self._supervision.stage or Stage.LOADING
        if stage is not self._stage:
            self._stage, self._stage_since_s = stage, now_s
        elif now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_EVERY_S
        self._signs += 1
        wall_ms, for_s = time.time_ns() // 1_000_000, int(now_s - self._stage_since_s)
        standby = self._standby.sign() if self._standby is not None else None
        sign = SupervisorSign(self._launch.id, self._signs, wall_ms, stage, for_s, standby)
        with contextlib.suppress(OSError):
            if self._folder.belongs_to(self._launch):
                self._folder.write_supervisor(sign)
        with contextlib.suppress(OSError):
            if master is not None and self._unwanted():
                master.terminate()  # one that runs cancels itself, or again

    def _start_process(self) -> None:
        self._master = self._start_child(standby=False)
        self._supervision.on_start()

    def _take_over(self, standby: MasterChild) -> None:
        assert self._standby is not None
        self._folder.forget_address()
        self._supervision.on_start(self._standby.stage)
        self._standby.on_takeover()
        self._master = standby
        standby.take_over()

    def _start_child(self, *, standby: bool) -> MasterChild:
        """The arguments name the launch file and whose it is: a later start may replace it before it is read.

        Raises an OSError if that file is lost and can't be written again.
        """
        self._folder.mend_launch(self._launch)
        arguments = [str(self._folder.launch_file), self._launch.id]
        return MasterChild(arguments, self._folder.log_file, standby=standby)

    def _listen(self, master: MasterChild) -> None:
        row = self._supervision.in_a_row
        for sign in master.heard():
            self._supervision.on_sign(sign.stage, sign.epoch)
        if row and not self._supervision.in_a_row and self._died is not None:
            self._remember(Death(self._died.fault, self._died.reason), self._died.at_ms, self._died.again_at_ms)

    def _end_process(self, master: MasterChild) -> int:
        """Returns the exit code of a JobMaster that has ended, or has to. Its last words are heard by then."""
        code = master.end()
        self._listen(master)
        master.close()
        self._master = None
        return code

    def _left_outcome(self, master: MasterChild) -> MasterExit | None:
        """Returns how the job ended, as the JobMaster wrote it down or, if it could not, told it."""
        with contextlib.suppress(OSError):
            return self._folder.read_exit() or master.outcome
        return master.outcome

    def _on_death(self, death: Death) -> MasterExit | None:
        if self._slept_through_a_start():
            return _LATER_START
        now_ms = _now_ms()
        standby = self._standby is not None and self._standby.pid is not None
        delay_ms = self._supervision.on_death(death, now_ms, self._jitter(), standby=standby)
        if delay_ms is None:
            return MasterExit(Outcome.FAILED, death.reason)
        wall_ms = time.time_ns() // 1_000_000
        self._remember(death, wall_ms, wall_ms + int(delay_ms))
        with contextlib.suppress(OSError):
            self._folder.forget_address()
        then = "its standby takes over" if standby else "starting another"
        self._on_crash(f"the JobMaster died ({death.reason}); {then}{_in(delay_ms)}")
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
    """Writes down how the job ended. A JobMaster that stopped and could not has not written that it should stay so."""
    try:
        if ended.outcome is Outcome.STOPPED and folder.belongs_to(launch) and folder.read_exit() is None:
            folder.want_stopped_here("stop")
            with contextlib.suppress(StoreError):  # the job has ended, whatever its bucket does now
                folder.share_desired()
        folder.write_exit(ended, launch)
    except (OSError, StoreError):
        return False  # a full or failing store; without the file nobody would know that the job has ended
    return True


if __name__ == "__main__":
    main()
