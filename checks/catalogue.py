"""The catalogue of faults: what each breaks, which cause its restart must have, and how the job recovers from it.

Nothing here touches a process: `checks/strikes.py` strikes, and `checks/faults.py` looks the cause up in the history.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from checks.processes import Role
from engine.core.errors import WeirError
from engine.host.launch import HEARTBEAT_TIMEOUT_S, LaunchOptions
from engine.protocol.failures import AttemptFailure, CheckpointFailure
from engine.store.failpoints import DELAY_S, Does, Point

RANDOM, ALL = "random", "all"
USUAL = "slot-killed"
"""The fault of a drill that names none."""
SHORT_S = 2.0
"""A hang that nobody may take for a death."""
FULL_S = 6.0
SLOW_S = 8.0
IN_PLACE_S, NEW_SPARK_S = 5.0, 20.0
"""Targets of recovery, on a machine that does nothing else: within the slots that stay, and with another Spark."""
JOBMASTER_TIMEOUT_S = LaunchOptions(path="").jobmaster_timeout_s
_LONGER = 1.5
_SPARE_S = 10.0


class How(Enum):
    KILL = "kill -9"
    STOP = "SIGSTOP"
    FULL = "no write to a file succeeds"
    KILL_AT = "kill -9 at a step"
    REFUSE = "the store is read-only"
    SLOW = "the store is slow"
    CUT = "nothing comes through between slots"
    SAVEPOINT = "asked for a savepoint"
    RESCALE = "asked for another parallelism"
    UPGRADE = "asked for an upgrade"

    @property
    def does(self) -> Does | None:
        """What the order says, if those who reach a failpoint carry it out themselves."""
        return {How.KILL_AT: Does.KILL, How.REFUSE: Does.REFUSE, How.SLOW: Does.DELAY, How.CUT: Does.HOLD}.get(self)

    @property
    def asks(self) -> bool:
        """Says whether the drill only asks the JobMaster for something, as a user does."""
        return self in (How.SAVEPOINT, How.RESCALE, How.UPGRADE)

    @property
    def of_store(self) -> bool:
        """Says whether checkpoints suffer from it: the job has recovered when one completes again."""
        return self in (How.FULL, How.REFUSE, How.SLOW)


class Ends(Enum):
    """What a blow ends, as the history must tell."""

    ATTEMPT = "its attempt"
    CHANNEL = "its attempt, by a channel between two slots"
    JOBMASTER = "its JobMaster"
    START = "its start: nobody supervises the job any more"
    CHECKPOINT = "a checkpoint"
    BEGUN = "nothing: what was asked for begins, and may fail by the other blow"
    DONE = "nothing of the job's work: what was asked for is done"
    NOTHING = "nothing"
    COVERED = "nothing of its own: the other blow of the same moment ends its attempt"


@dataclass(frozen=True)
class Cause:
    """The cause that the history must name: one of `words` is part of what it says. `text` says it to people."""

    ends: Ends
    words: tuple[str, ...]
    text: str


SLOT_LOST = Cause(Ends.ATTEMPT, (AttemptFailure.SLOT_LOST.code,), "`slot_lost`, of this slot and process")
SLOT_SILENT = Cause(Ends.ATTEMPT, (AttemptFailure.SLOT_SILENT.code,), "`slot_silent`, of this slot and process")
MASTER_KILLED = Cause(Ends.JOBMASTER, ("signal SIGKILL",), "the JobMaster died of SIGKILL")
MASTER_SILENT = Cause(Ends.JOBMASTER, ("it gave no sign of life",), "the JobMaster gave no sign of life")
JVM_GONE = Cause(
    Ends.JOBMASTER,
    ("Spark's JVM is gone", "the Spark job of the slots failed"),  # whoever notices it first
    "Spark's JVM is gone, or the slots' job in it failed",
)
JVM_SILENT = Cause(Ends.JOBMASTER, ("Spark's JVM did not answer",), "Spark's JVM did not answer")
UNSUPERVISED = Cause(Ends.START, ("its supervisor has died",), "the JobMaster ended itself: its supervisor has died")
NOT_WRITTEN = Cause(
    Ends.CHECKPOINT,
    (CheckpointFailure.WRITE_FAILED.code,),
    "checkpoints fail by `write_failed` and, if the job tolerates none, attempts by `checkpoints_failed`",
)
NOT_WRITABLE = Cause(
    Ends.CHECKPOINT,
    (CheckpointFailure.WRITE_FAILED.code, CheckpointFailure.FINALIZE_FAILED.code),
    "checkpoints fail by `write_failed` or `finalize_failed` and, if the job tolerates none, attempts by "
    "`checkpoints_failed`",
)
CUT_OFF = Cause(Ends.CHANNEL, ("has been silent for",), "a channel broke: its other end has been silent")
SAVEPOINT_BEGUN = Cause(Ends.BEGUN, ("savepoint",), "the savepoint was begun")
SAVEPOINT_DONE = Cause(Ends.DONE, ("savepoint",), "no restart: the savepoint is complete")
RESCALE_BEGUN = Cause(Ends.BEGUN, ("rescale",), "the rescale was begun")
RESCALE_DONE = Cause(
    Ends.DONE, ("rescale",), "no restart: the job runs at the new parallelism, its state has the same digest"
)
UPGRADED = Cause(Ends.START, ("/savepoints/upgrade-",), "the job was stopped behind the savepoint of the upgrade")
NONE = Cause(Ends.NOTHING, (), "no restart: the job goes on")
COVERED = Cause(Ends.COVERED, (), "ends together with the other victim")


@dataclass(frozen=True)
class Blow:
    """One blow against one process (`FULL`: against all slots). It lasts `lasts_s` at most; 0: it is over at once.

    `at`: the failpoint at which its victims carry it out themselves.
    """

    victim: Role
    how: How
    cause: Cause
    lasts_s: float = 0.0
    at: Point | None = None


@dataclass(frozen=True)
class Fault:
    """A fault: one blow or two. The second comes at once or, with `in_recovery`, when the restart has begun."""

    name: str
    does: str
    recovery: str
    blows: tuple[Blow, ...]
    in_recovery: bool = False

    @property
    def lasts_s(self) -> float:
        return max(blow.lasts_s for blow in self.blows)

    @property
    def target_s(self) -> float:
        """The recovery that it should not exceed: the time until it is noticed, or over, and that of the way back."""
        ends = {blow.cause.ends for blow in self.blows}
        noticed_s = max((blow.lasts_s for blow in self.blows), default=0.0)
        if any(blow.cause in (SLOT_SILENT, CUT_OFF) for blow in self.blows):
            noticed_s = HEARTBEAT_TIMEOUT_S
        elif any(blow.cause in (MASTER_SILENT, JVM_SILENT) for blow in self.blows):
            noticed_s = JOBMASTER_TIMEOUT_S
        return noticed_s + (NEW_SPARK_S if ends & {Ends.JOBMASTER, Ends.START} else IN_PLACE_S)

    @property
    def restarts(self) -> bool:
        """Says whether the job has to restart."""
        return any(blow.cause.ends in (Ends.ATTEMPT, Ends.CHANNEL, Ends.JOBMASTER, Ends.START) for blow in self.blows)

    @property
    def cause(self) -> str:
        return "; then ".join(dict.fromkeys(blow.cause.text for blow in self.blows if blow.cause is not COVERED))


class NoSuchFault(WeirError):
    """The catalogue has no fault of this name."""


def _kill(victim: Role, cause: Cause) -> Blow:
    return Blow(victim, How.KILL, cause)


def _stop(victim: Role, cause: Cause, lasts_s: float = SHORT_S) -> Blow:
    return Blow(victim, How.STOP, cause, lasts_s)


def _ask(how: How, cause: Cause) -> Blow:
    return Blow(Role.MASTER, how, cause)


def _killed_at(at: Point, name: str, moment: str) -> Fault:
    """Returns the fault of a kill at one step of a checkpoint: slots write its parts, the JobMaster does the rest."""
    slot = name.startswith("slot")
    blow = Blow(Role.SLOT if slot else Role.MASTER, How.KILL_AT, SLOT_LOST if slot else MASTER_KILLED, at=at)
    who = "the first slot that gets there" if slot else "the JobMaster"
    return Fault(name, f"kills {who} with SIGKILL {moment}", _IN_PLACE if slot else _NEW_SPARK, (blow,))


def _beyond(timeout_s: float) -> float:
    """Returns how long a process may be stopped to be found hung. It is let go as soon as it is replaced."""
    return timeout_s * _LONGER + _SPARE_S


_IN_PLACE = "the other slots stay, a replacement is forked, all go on from the last epoch: some 2 s"
_NEW_SPARK = "the supervisor starts another JobMaster and another Spark, which go on from the last epoch"
_TRIES = "the job tries again, later and later, until a checkpoint completes"
_GOES_ON = "when the process goes on, so does the job, without a restart"

_FAULTS = (
    Fault("slot-killed", "kills one slot with SIGKILL", _IN_PLACE, (_kill(Role.SLOT, SLOT_LOST),)),
    Fault(
        "slot-stopped",
        f"stops one slot with SIGSTOP for {SHORT_S:.0f} s, less than its time-out",
        _GOES_ON,
        (_stop(Role.SLOT, NONE),),
    ),
    Fault(
        "slot-hung",
        f"stops one slot with SIGSTOP until it is replaced, after its time-out of {HEARTBEAT_TIMEOUT_S:.0f} s",
        "the JobMaster has Spark kill the slot; then as after `slot-killed`",
        (_stop(Role.SLOT, SLOT_SILENT, _beyond(HEARTBEAT_TIMEOUT_S)),),
    ),
    Fault(
        "daemon-killed",
        "kills the daemon that forks slots, with SIGKILL",
        "slots run without their daemon; Spark starts another for the next slot",
        (_kill(Role.DAEMON, NONE),),
    ),
    Fault(
        "daemon-stopped",
        "stops the daemon that forks slots with SIGSTOP for 15 s",
        "slots run without their daemon; only a new slot would have to wait for it",
        (_stop(Role.DAEMON, NONE, 15.0),),
    ),
    Fault("jvm-killed", "kills the JVM of Spark's driver with SIGKILL", _NEW_SPARK, (_kill(Role.JVM, JVM_GONE),)),
    Fault(
        "jvm-stopped",
        f"stops the JVM of Spark's driver with SIGSTOP for {SHORT_S:.0f} s",
        _GOES_ON,
        (_stop(Role.JVM, NONE),),
    ),
    Fault(
        "jvm-hung",
        f"stops the JVM of Spark's driver with SIGSTOP until it is replaced, after {JOBMASTER_TIMEOUT_S:.0f} s",
        _NEW_SPARK,
        (_stop(Role.JVM, JVM_SILENT, _beyond(JOBMASTER_TIMEOUT_S)),),
    ),
    Fault("jobmaster-killed", "kills the JobMaster with SIGKILL", _NEW_SPARK, (_kill(Role.MASTER, MASTER_KILLED),)),
    Fault(
        "jobmaster-stopped",
        f"stops the JobMaster with SIGSTOP for {SHORT_S:.0f} s",
        _GOES_ON,
        (_stop(Role.MASTER, NONE),),
    ),
    Fault(
        "jobmaster-hung",
        f"stops the JobMaster with SIGSTOP until it is replaced, after {JOBMASTER_TIMEOUT_S:.0f} s",
        "the supervisor kills it, and starts another JobMaster and another Spark, which go on from the last epoch",
        (_stop(Role.MASTER, MASTER_SILENT, _beyond(JOBMASTER_TIMEOUT_S)),),
    ),
    Fault(
        "supervisor-killed",
        "kills the supervisor with SIGKILL, and starts the job again as `weir resume` and Dagster's sensor do",
        "the JobMaster ends itself, the drill resumes the job: a whole start",
        (_kill(Role.SUPERVISOR, UNSUPERVISED),),
    ),
    Fault(
        "supervisor-stopped",
        "stops the supervisor with SIGSTOP for 15 s",
        "nobody waits for a supervisor: the job goes on meanwhile",
        (_stop(Role.SUPERVISOR, NONE, 15.0),),
    ),
    Fault(
        "slots-disk-full",
        f"lets each write of a slot to a file fail for {FULL_S:.0f} s, as when the disk of the store is full",
        _TRIES,
        (Blow(Role.SLOT, How.FULL, NOT_WRITTEN, FULL_S),),
    ),
    Fault(
        "store-read-only",
        f"lets each write to a file of the store fail for {FULL_S:.0f} s with `EROFS`, in the JobMaster too",
        _TRIES,
        (Blow(Role.STORE, How.REFUSE, NOT_WRITABLE, FULL_S, Point.FILE_WRITE),),
    ),
    Fault(
        "store-slow",
        f"lets each fsync take {DELAY_S} s longer, for {SLOW_S:.0f} s",
        "checkpoints take longer; records flow on meanwhile",
        (Blow(Role.STORE, How.SLOW, NONE, SLOW_S, Point.FILE_SYNC),),
    ),
    Fault(
        "slots-cut",
        "lets nothing through between slots, in both directions, while connections stay open and both reach the "
        f"JobMaster, until the job restarts for it, after its time-out of {HEARTBEAT_TIMEOUT_S:.0f} s",
        "the slots stay, and go on from the last epoch as soon as something comes through again",
        (Blow(Role.CHANNELS, How.CUT, CUT_OFF, _beyond(HEARTBEAT_TIMEOUT_S), Point.CHANNEL),),
    ),
    _killed_at(Point.BEFORE_STATE, "slot-killed-before-state", "before it writes its part of a checkpoint"),
    _killed_at(
        Point.AFTER_TABLE_FILE, "slot-killed-after-table-file", "when its file of a table is durable, and nobody knows"
    ),
    _killed_at(
        Point.BEFORE_ACK, "slot-killed-before-ack", "when its part of a checkpoint is durable, and not acknowledged"
    ),
    _killed_at(
        Point.BEFORE_MANIFEST,
        "jobmaster-killed-before-manifest",
        "when all slots have acknowledged, before the manifest",
    ),
    _killed_at(
        Point.BEFORE_RECORD, "jobmaster-killed-before-record", "between the manifest and the record of the epoch log"
    ),
    _killed_at(
        Point.AFTER_RECORD, "jobmaster-killed-after-record", "right after the commit point, before any table commits"
    ),
    _killed_at(Point.BEFORE_SEAL, "jobmaster-killed-before-seal", "between a record of a table's log and its checksum"),
    _killed_at(Point.AFTER_TABLE, "jobmaster-killed-between-tables", "when the first of the tables has committed"),
    _killed_at(
        Point.AFTER_COMMIT, "jobmaster-killed-after-commit", "when all tables have committed, before it notes so"
    ),
    Fault(
        "daemon-and-slot-killed",
        "kills the daemon that forks slots and one slot at once, with SIGKILL",
        "Spark starts another daemon, which forks the replacement; then as after `slot-killed`",
        (_kill(Role.DAEMON, COVERED), _kill(Role.SLOT, SLOT_LOST)),
    ),
    Fault(
        "jobmaster-and-slot-killed",
        "kills the JobMaster and one slot at once, with SIGKILL",
        _NEW_SPARK,
        (_kill(Role.MASTER, MASTER_KILLED), _kill(Role.SLOT, COVERED)),
    ),
    Fault(
        "jobmaster-killed-in-recovery",
        "kills one slot and, as soon as the job restarts for it, the JobMaster, with SIGKILL",
        _NEW_SPARK,
        (_kill(Role.SLOT, SLOT_LOST), _kill(Role.MASTER, MASTER_KILLED)),
        in_recovery=True,
    ),
    Fault("savepoint", "takes a savepoint", "nothing stops meanwhile", (_ask(How.SAVEPOINT, SAVEPOINT_DONE),)),
    Fault(
        "slot-killed-in-savepoint",
        "asks for a savepoint, and kills one slot at once with SIGKILL",
        f"the savepoint is made or told as failed; {_IN_PLACE}",
        (_ask(How.SAVEPOINT, SAVEPOINT_BEGUN), _kill(Role.SLOT, SLOT_LOST)),
    ),
    Fault(
        "jobmaster-killed-in-savepoint",
        "asks for a savepoint, and kills the JobMaster at once with SIGKILL",
        f"the savepoint is made or told as failed; {_NEW_SPARK}",
        (_ask(How.SAVEPOINT, SAVEPOINT_BEGUN), _kill(Role.MASTER, MASTER_KILLED)),
    ),
    Fault(
        "rescale",
        "lets the job run at parallelism 1, and then at its own again",
        "slots stay; each time the job leaves its attempt behind a checkpoint, and goes on from there",
        (_ask(How.RESCALE, RESCALE_DONE), _ask(How.RESCALE, RESCALE_DONE)),
        in_recovery=True,
    ),
    Fault(
        "slot-killed-in-rescale",
        "asks for parallelism 1, and kills one slot at once with SIGKILL",
        f"the rescale is done or told as failed; {_IN_PLACE}",
        (_ask(How.RESCALE, RESCALE_BEGUN), _kill(Role.SLOT, SLOT_LOST)),
    ),
    Fault(
        "jobmaster-killed-in-rescale",
        "asks for parallelism 1, and kills the JobMaster at once with SIGKILL",
        f"the rescale is done or told as interrupted; {_NEW_SPARK}",
        (_ask(How.RESCALE, RESCALE_BEGUN), _kill(Role.MASTER, MASTER_KILLED)),
    ),
    Fault(
        "upgrade",
        "replaces the job by itself, as by a version with changed code",
        "the job stops behind a savepoint, and the new version goes on from there: a whole start",
        (_ask(How.UPGRADE, UPGRADED),),
    ),
)

CATALOGUE: dict[str, Fault] = {fault.name: fault for fault in _FAULTS}
"""Every fault by its name, in the order in which they are listed."""


def choose(names: Sequence[str], seed: int) -> list[Fault]:
    """Returns the faults of these names; the seed draws those that are `random`. Raises NoSuchFault."""
    chance = random.Random(f"faults {seed}")
    return [chance.choice(_FAULTS) if name == RANDOM else fault_of(name) for name in names]


def fault_of(name: str) -> Fault:
    if name not in CATALOGUE:
        raise NoSuchFault(f"there is no fault {name!r}; there are {', '.join(CATALOGUE)}, and {RANDOM}")
    return CATALOGUE[name]
