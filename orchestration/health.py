"""Decides whether a job that should run does, from the files in its run folder and the age of its heartbeat."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from engine.host.run_folder import Deaths, Desired, LastHeartbeat, MasterExit, RunFolder
from engine.jobmaster.actions import Outcome


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


def judge(
    desired: Desired | None,
    ended: MasterExit | None,
    heartbeat: LastHeartbeat | None,
    now_ms: int,
    silent_after_s: float,
    deaths: Deaths | None = None,
) -> Health:
    """Judges a job. A failed job is not started again: restarts have not helped, so a person must look.

    Nor is one whose supervisor is replacing its JobMaster: the supervisor tries for ever, and says why it has to.
    """
    if desired is None:
        return Health(State.UNKNOWN, "the job was never started in this store")
    if not desired.running:
        return Health(State.STOPPED, f"stopped on purpose (by {desired.by})")
    if ended is not None:
        if ended.outcome is Outcome.FINISHED:
            return Health(State.FINISHED, ended.reason)
        if ended.outcome is Outcome.FAILED:
            traceback = f"\n{ended.raised.traceback}" if ended.raised is not None and ended.raised.traceback else ""
            return Health(State.FAILED, ended.reason + traceback)
        return Health(State.GONE, f"the job should run, but was {ended.outcome}: {ended.reason}", start_again=True)
    if deaths is not None and deaths.in_a_row and now_ms < deaths.again_at_ms + 1000 * silent_after_s:
        age_s = max(0.0, (now_ms - heartbeat.at_ms) / 1000) if heartbeat else None
        if heartbeat is None or heartbeat.phase != "running" or heartbeat.at_ms < deaths.at_ms:
            return Health(State.RECOVERING, deaths.in_words(now_ms), age_s)
    last_ms = max(desired.at_ms, heartbeat.at_ms if heartbeat else 0)
    age_s = max(0.0, (now_ms - last_ms) / 1000)
    if age_s > silent_after_s:
        detail = f"no heartbeat of the JobMaster for {age_s:.0f} s"
        return Health(State.SILENT, detail, age_s, start_again=age_s > 2 * silent_after_s)
    if heartbeat is None or heartbeat.at_ms < desired.at_ms:
        return Health(State.STARTING, f"started {age_s:.0f} s ago")
    state = State.RUNNING if heartbeat.phase == "running" else State.RECOVERING
    return Health(state, f"generation {heartbeat.generation} is {heartbeat.phase}", age_s)


def look(folder: RunFolder, now_ms: int, silent_after_s: float) -> Health:
    deaths = folder.read_deaths()
    return judge(folder.read_desired(), folder.read_exit(), folder.read_heartbeat(), now_ms, silent_after_s, deaths)
