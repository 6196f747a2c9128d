"""Decides what follows a failure: another attempt, another JobMaster, or the end of the job. Nothing else decides it.

The rule: what comes from outside, and a defect of Weir, never end a job. They are tried again for ever, later and
later, and shown. Only the job's own fault ends it, because only its author can mend that.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from enum import Enum

import msgspec

from engine.protocol.failures import Fault

FENCED_EXIT_CODE = 71
"""The exit code of a fenced JobMaster. It writes no file: its successor may own the run folder by then."""


class Remedy(Enum):
    RESTART = "another attempt, as the restart strategy says"
    REPLACE = "another JobMaster, after a back-off"
    END = "the job ends"


class Where(Enum):
    """Where a failure shows: in an attempt, which a JobMaster survives, or in the JobMaster itself."""

    ATTEMPT = "attempt"
    JOBMASTER = "JobMaster"


_REMEDIES = {
    # A function that raised may have met something passing, so it gets another attempt until the error comes again.
    (Where.ATTEMPT, Fault.JOB): Remedy.RESTART,
    (Where.ATTEMPT, Fault.OUTSIDE): Remedy.RESTART,
    (Where.ATTEMPT, Fault.WEIR): Remedy.RESTART,
    # Code that does not build, state that can't be read or does not fit the job: another JobMaster finds the same.
    (Where.JOBMASTER, Fault.JOB): Remedy.END,
    (Where.JOBMASTER, Fault.OUTSIDE): Remedy.REPLACE,
    (Where.JOBMASTER, Fault.WEIR): Remedy.REPLACE,
}


def remedy(where: Where, fault: Fault, *, again: bool = False) -> Remedy:
    """`again`: the same error came before, without an epoch in between."""
    if fault is Fault.JOB and again:
        return Remedy.END
    return _REMEDIES[where, fault]


_QUERY = re.compile(
    r"[.$](\w*AnalysisException|ParseException|PythonException|\w*ArithmeticException|\w*DateTimeException"
    r"|\w*NumberFormatException|\w*IllegalArgumentException|\w*UnsupportedOperationException|ClassCastException"
    r"|\w*ArrayIndexOutOfBoundsException|\w*NoSuchElementException)$"
)
_OUTSIDE = re.compile(
    r"^(java\.(io|net|nio|sql)|javax\.net|org\.apache\.hadoop|com\.amazonaws|software\.amazon)\.|Error$"
)


def fault_of_query(java: Sequence[str]) -> Fault:
    """Says whose fault it is that Spark could not run a query, by the Java classes of the error and of its causes.

    A disk, a network or a store in the chain is to blame, whatever Spark makes of it. Otherwise a query that Spark
    refuses, and a function that raised, are the job's. What is not known is tried again.
    """
    if any(_OUTSIDE.search(name) for name in java):
        return Fault.OUTSIDE
    return Fault.JOB if any(_QUERY.search(name) for name in java) else Fault.OUTSIDE


class Stage(Enum):
    """What a JobMaster process does. Its signs of life name the stage.

    A standby is WARMING until all of its slots have registered, and then STANDING_BY until it takes over.
    """

    LOADING = "loading the job"
    STARTING = "starting Spark"
    PREPARING = "writing the job's DataFrames"
    WARMING = "waiting for its slots"
    STANDING_BY = "standing by"
    DECIDING = "running the job"
    ENDING = "ending"


class Death(msgspec.Struct, frozen=True):
    """The end of a JobMaster that left no outcome: whose fault it is, and why. Its last words say the same."""

    fault: Fault
    reason: str


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)  # a real-time signal has no name


def death_of(exit_code: int, stage: Stage | None, words: Death | None, silent_s: float | None = None) -> Death:
    """Says whose fault the end of a JobMaster process is. `silent_s`: it was killed after this much silence.

    A supervisor asks only while the run folder is its own, so that a fenced JobMaster is replaced by one supervisor at
    most: a folder belongs to the last start, replacing a JobMaster does not take it over, and each JobMaster looks
    whose it is before it claims the job. So two supervisors can't fence each other's JobMasters for ever.
    """
    doing = f" while it was {stage.value}" if stage is not None else ""
    if words is not None:
        return words
    if silent_s is not None:
        return Death(Fault.OUTSIDE, f"it gave no sign of life for {silent_s:.0f} s{doing}, and was killed")
    if exit_code == FENCED_EXIT_CODE:
        return Death(Fault.OUTSIDE, "another process took the job over, and the run folder is still this start's")
    if exit_code < 0:
        return Death(Fault.OUTSIDE, f"signal {_signal_name(-exit_code)}{doing}")
    if stage is Stage.LOADING:
        reason = f"the job's code ended the JobMaster's process (exit code {exit_code}) while it was loaded"
        return Death(Fault.JOB, f"{reason}; a job must not call sys.exit or os._exit")
    return Death(Fault.WEIR, f"exit code {exit_code}{doing}")
