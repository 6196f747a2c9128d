"""The tree of errors that Weir raises on purpose. Each error knows whose fault it is."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.authors import message_of, raised
from engine.protocol.failures import Fault, Raised


class WeirError(Exception):
    """The base class. The message says what happened, where, and what to do.

    A plain WeirError tells the user what to mend in the job or in how it was started.
    """

    fault = Fault.JOB


# --- the job's own ---


class CorruptSnapshot(WeirError):
    """A file of the snapshot was truncated, changed or deleted after it was written. Only a person can choose."""


class ForeignSnapshot(WeirError):
    """The snapshot is of another job, or of another version of Weir. Its files are as they were written."""


class NoSavepoint(WeirError):
    """There is no savepoint at this place."""


class SavepointExists(WeirError):
    """There is a savepoint of this name already. Savepoints are never replaced."""


class NothingIntact(WeirError):
    """No epoch in the store can be read completely."""


class JobError(WeirError):
    """The job can't be built. The error is raised before anything runs. `raised` says where, if it is known."""

    def __init__(self, message: str, raised: Raised | None = None) -> None:
        super().__init__(message)
        self.raised = raised


class LoadFailed(JobError):
    """The operating system failed while the job was loaded: a mount is missing, a disk can't be read."""

    fault = Fault.OUTSIDE


class JobFailed(WeirError):
    """A job has ended, and not as it should. Its cause is the error of the job's own code, if it was one."""


class RaisedInSlot(WeirError):
    """Stands for an error of the job's own code in another process. The text is its traceback."""

    def __init__(self, raised: Raised) -> None:
        super().__init__(f"{raised.position} {raised.record}\n{raised.traceback or raised.message}".strip())
        self.raised = raised


class IncompatibleJob(WeirError):
    """The job has changed so that it can't go on from its newest epoch. `rows`: operator, what changed, what to do."""

    def __init__(self, summary: str, rows: Sequence[tuple[str, str, str]]) -> None:
        lines = [f"  {uid}: {what}. What to do: {fix}" for uid, what, fix in rows]
        super().__init__("\n".join([f"{summary}:", *lines]))
        self.summary = summary
        self.rows = list(rows)


class StateUnclaimed(WeirError):
    """A function no longer asks for a state that the snapshot holds."""


class UnfitState(WeirError, ValueError):
    """A function asks for a state as another kind or type than the snapshot holds."""


class NotTaken(WeirError):
    """An operator emits records to an output that nothing takes: they would be lost."""


class UserFunctionError(WeirError):
    """A function, a source or a sink of the job raised `cause`, at `record` if that is known."""

    def __init__(self, uid: str, subtask: int | None, position: str, cause: BaseException, record: str = "") -> None:
        """`subtask` is None for a committer, which runs in the JobMaster."""
        where = f"{position}, {record}" if record else position
        of = f", subtask {subtask}" if subtask is not None else ""
        super().__init__(f"operator {uid!r}{of}, {where}: {type(cause).__name__}: {message_of(cause)}")
        self.uid = uid
        self.raised = raised(cause, position, record)


class ConnectorError(UserFunctionError):
    """A source or a sink of the job raised an error of the operating system: what it talks to is not there now."""

    fault = Fault.OUTSIDE


class SchemaMismatch(WeirError):
    """Records do not have the declared schema."""


class BadEventTime(WeirError):
    """A record has an event time that cannot be one, such as nanoseconds in a column of milliseconds."""


class RecordTooLarge(WeirError):
    """One record is larger than a channel accepts."""


class TargetTaken(WeirError):
    """A sink's target belongs to another job, or holds what Weir did not write."""


# --- outside: machines, networks, stores, other processes ---


class StoreError(WeirError):
    """The store could not do what it was asked to; the message says what and where."""

    fault = Fault.OUTSIDE


class SyncFailed(StoreError):
    """An fsync failed. The kernel may have dropped the data, so the process must end and be replaced."""


class Fenced(WeirError):
    """Another JobMaster has taken over; this process may neither publish nor commit."""

    fault = Fault.OUTSIDE


class ChannelBroken(WeirError):
    """The connection of a channel broke."""

    fault = Fault.OUTSIDE


class SparkLost(WeirError):
    """Spark did not start, ended, or does not answer."""

    fault = Fault.OUTSIDE


class SparkFailed(WeirError):
    """Spark runs, but could not do its part: an executor, a disk, a network or a store failed."""

    fault = Fault.OUTSIDE


class JavaNotFound(WeirError):
    """There is no Java that Spark can run on; the message says what to do."""

    fault = Fault.OUTSIDE


class NotRunning(WeirError):
    """No JobMaster answers for this job."""

    fault = Fault.OUTSIDE


class Ending(NotRunning):
    """The JobMaster answers that it is about to end; it then writes its `MasterExit`."""


class Slow(NotRunning):
    """The JobMaster is there and did not answer in time. What it was asked for may still be done."""


class NoAnswer(WeirError):
    """The JobMaster process exists, but can't answer now."""

    fault = Fault.OUTSIDE


# --- Weir's own ---


class ChannelError(WeirError):
    """A channel lost, repeated or reordered a frame."""

    fault = Fault.WEIR


def raised_by(error: BaseException) -> Raised | None:
    """Returns what is shown of an error of the job's own code; None: the error is not the job's."""
    known = getattr(error, "raised", None)
    if isinstance(known, Raised):
        return known
    return raised(error) if fault_of(error) is Fault.JOB else None


def fault_of(error: BaseException) -> Fault:
    """Says whose fault any error is that reached Weir. An error of the operating system comes from outside."""
    if isinstance(error, WeirError):
        return error.fault
    return Fault.OUTSIDE if isinstance(error, OSError | MemoryError) else Fault.WEIR
