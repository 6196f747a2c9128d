"""Whose fault each error is: the JobMaster takes the job's own for the user's to mend."""

from __future__ import annotations

import pytest

from engine.connectors.files.listing import FileError
from engine.core import errors
from engine.protocol.failures import Fault

OUTSIDE = {
    "LoadFailed",
    "SparkFailed",
    "StoreError",
    "SyncFailed",
    "Fenced",
    "ChannelBroken",
    "NotRunning",
    "Slow",
    "Ending",
    "SparkLost",
    "JavaNotFound",
    "NoAnswer",
    "ConnectorError",
}
WEIR = {"ChannelError"}


def test_every_error_of_core_is_in_the_tree_and_has_the_fault_that_is_meant() -> None:
    made_here = (
        kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__
    )
    raised = {kind.__name__: kind for kind in made_here}
    assert all(issubclass(kind, errors.WeirError) for kind in raised.values())
    assert {name for name, kind in raised.items() if kind.fault is Fault.OUTSIDE} == OUTSIDE
    assert {name for name, kind in raised.items() if kind.fault is Fault.WEIR} == WEIR


@pytest.mark.parametrize("error", [errors.JobError, errors.UserFunctionError, errors.SchemaMismatch, FileError])
def test_what_its_author_can_mend_is_the_job_s_own(error: type[errors.WeirError]) -> None:
    assert error.fault is Fault.JOB


@pytest.mark.promise("H8")
@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (errors.JobError("it does not build"), Fault.JOB),
        (errors.CorruptSnapshot("a file is not what was written"), Fault.JOB),
        (errors.NothingIntact("no epoch"), Fault.JOB),
        (errors.StoreError("can't write"), Fault.OUTSIDE),
        (OSError(28, "No space left on device"), Fault.OUTSIDE),
        (ConnectionRefusedError(), Fault.OUTSIDE),
        (MemoryError(), Fault.OUTSIDE),
        (KeyError("x"), Fault.WEIR),
        (ValueError("x"), Fault.WEIR),
    ],
)
def test_every_error_is_somebody_s_fault(error: BaseException, fault: Fault) -> None:
    assert errors.fault_of(error) is fault
