"""Decides whether a job that should run does, from the signs of its JobMaster and its supervisor in its run folder."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum

from engine.host.processes import has_ended
from engine.host.run_folder import Deaths, LastHeartbeat, MasterExit, RunFolder, SupervisorSign
from engine.host.starts import Desired
from engine.jobmaster.actions import Outcome
from engine.protocol.remedy import Stage

AHEAD_MS = 5_000
"""A heartbeat from this far in the future was written before the clock was set back: its age is unknown."""


class State(Enum):
    UNKNOWN = "never started"
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    SILENT = "silent"
    GONE = "gone"
    FAILED = "failed"
    FINISHED = "finished"


@dataclass(frozen=True)
class Health:
    """The state of a job. `start_again` is true if it should run, does not, and has not failed."""

    state: State
    detail: str
    heartbeat_age_s: float | None = None
    start_again: bool = False

    @property
    def healthy(self) -> bool:
        return self.state in (State.RUNNING, State.STARTING, State.STOPPED, State.FINISHED)

    @property
    def answers(self) -> bool:
        """True if the JobMaster can be asked for its status."""
        return self.state in (State.RUNNING, State.RECOVERING)


@dataclass(frozen=True)
class Signs:
    """What a job's JobMaster and its supervisor showed last. `supervisor` is None if it gave no sign meanwhile."""

    heartbeat: LastHeartbeat | None = None
    deaths: Deaths | None = None
    supervisor: SupervisorSign | None = None
    supervisor_ms: int = 0
    """The time of the supervisor's last sign, whether or not it lives; 0: there is none of this start."""
    ended: bool = False
    """True if the process that wrote the heartbeat is known to have ended, however fresh its heartbeat is."""


def judge(
    desired: Desired | None, ended: MasterExit | None, signs: Signs, now_ms: int, silent_after_s: float
) -> Health:
    """Judges a job. A failed job is not started again: restarts have not helped, so a person must look.

    Nor is one whose supervisor lives: it starts JobMasters for ever, and says why it has to.
    """
    if desired is None:
        return Health(State.UNKNOWN, "the job was never started in this store")
    if not desired.running:
        return Health(State.STOPPED, f"stopped on purpose (by {desired.by})")
    if ended is not None:
        return _of_ended(ended)
    if beats(desired, signs, now_ms, silent_after_s):
        return _of_heartbeat(signs, now_ms)
    if signs.supervisor is not None:
        return _of_supervisor(desired, signs, signs.supervisor, now_ms)
    known_ms = [desired.at_ms, signs.supervisor_ms, signs.heartbeat.at_ms if signs.heartbeat else 0]
    last_ms = max((at_ms for at_ms in known_ms if at_ms <= now_ms + AHEAD_MS), default=0)
    age_s = max(0.0, (now_ms - last_ms) / 1000)
    if age_s <= silent_after_s and last_ms == desired.at_ms:
        return Health(State.STARTING, f"started {age_s:.0f} s ago")
    detail = f"no sign of life of the JobMaster or its supervisor for {age_s:.0f} s"
    return Health(State.SILENT, detail, age_s, start_again=age_s > 2 * silent_after_s)


def beats(desired: Desired, signs: Signs, now_ms: int, silent_after_s: float) -> bool:
    """Says whether the JobMaster of this start gave a sign of life lately, and has not died since."""
    if signs.heartbeat is None or signs.ended:
        return False
    at_ms, died_ms = signs.heartbeat.at_ms, signs.deaths.at_ms if signs.deaths is not None else 0
    return at_ms >= max(desired.at_ms, died_ms) and -AHEAD_MS <= now_ms - at_ms <= 1000 * silent_after_s


def _of_ended(ended: MasterExit) -> Health:
    if ended.outcome is Outcome.FINISHED:
        return Health(State.FINISHED, ended.reason)
    if ended.outcome is Outcome.FAILED:
        traceback = f"\n{ended.raised.traceback}" if ended.raised is not None and ended.raised.traceback else ""
        return Health(State.FAILED, ended.reason + traceback)
    return Health(State.GONE, f"the job should run, but was {ended.outcome}: {ended.reason}", start_again=True)


def _of_heartbeat(signs: Signs, now_ms: int) -> Health:
    heartbeat, deaths = signs.heartbeat, signs.deaths
    assert heartbeat is not None
    age_s = max(0.0, (now_ms - heartbeat.at_ms) / 1000)
    if heartbeat.phase == "running":
        return Health(State.RUNNING, f"generation {heartbeat.generation} is running", age_s)
    if deaths is not None and deaths.in_a_row:
        return Health(State.RECOVERING, deaths.in_words(now_ms), age_s)
    return Health(State.RECOVERING, f"generation {heartbeat.generation} is {heartbeat.phase}", age_s)


def _of_supervisor(desired: Desired, signs: Signs, supervisor: SupervisorSign, now_ms: int) -> Health:
    doing = f"its supervisor shows: {supervisor.in_words()}"
    if signs.deaths is not None and signs.deaths.in_a_row:
        return Health(State.RECOVERING, f"{signs.deaths.in_words(now_ms)}; {doing}")
    heard = signs.heartbeat is not None and signs.heartbeat.at_ms >= desired.at_ms
    if signs.ended and heard:
        return Health(State.RECOVERING, f"the JobMaster's process has ended; {doing}")
    if supervisor.stage is Stage.DECIDING and heard:
        return Health(State.SILENT, f"the JobMaster decides, but its heartbeat can't be written or hangs; {doing}")
    return Health(State.STARTING, doing)


def look(folder: RunFolder, silent_after_s: float) -> Health:
    """Reads and judges. If the heartbeat says too little, waits some seconds for a sign of the supervisor."""
    desired, ended, upgrade = folder.read_desired_here(), folder.read_exit(), folder.read_upgrade()
    if desired is not None and not desired.running and upgrade is not None and not upgrade.progress.phase.over:
        return Health(State.RECOVERING, upgrade.in_words(desired.launch.name))
    signs = _signs(folder, None)
    if desired is None or not desired.running or ended is not None or beats(desired, signs, _now_ms(), silent_after_s):
        return judge(desired, ended, signs, _now_ms(), silent_after_s)
    supervisor = folder.live_supervisor()
    return judge(desired, folder.read_exit(), _signs(folder, supervisor), _now_ms(), silent_after_s)


def _signs(folder: RunFolder, supervisor: SupervisorSign | None) -> Signs:
    last, heartbeat, address = folder.read_supervisor(), folder.read_heartbeat(), folder.read_address()
    same = heartbeat is not None and address is not None and heartbeat.generation == address.generation
    ended = same and address is not None and has_ended(address.process)
    return Signs(heartbeat, folder.read_deaths(), supervisor, last.at_ms if last is not None else 0, ended)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
