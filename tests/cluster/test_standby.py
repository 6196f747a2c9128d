"""Goal: a standby takes over from a JobMaster that is killed, and a JobMaster that was only stopped does no harm.

Topology: two source subtasks → keyed exchange → two window subtasks → Weir table; two slots on local Spark, and as many
of the standby on a Spark of its own. Faults: SIGKILL of a JobMaster; SIGSTOP of a JobMaster that nobody ends, a later
start of the job, SIGCONT. Checks: the table against numpy, who owns which records of the epoch log, what the old
JobMaster says, how long the job stood still, and that no process is left.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from engine.jobmaster.status import JobStatus
from engine.protocol.epoch_records import LogRecord, RecordKind
from tests.cluster.harness import RunningJob, session_processes
from tests.cluster.jobs import EVENT_RATE
from tests.cluster.test_recovery import expected_windows, got_windows, jobmaster_of

ROWS = 10_000_000
"""More than any of the tests reads: they cancel the job."""


def check_committed(table: pa.Table) -> None:
    """Every window was published once and whole, and none is missing before the last second."""
    got = got_windows(table)
    last = max(second for _, second, _, _ in got)
    expected = expected_windows((last + 1) * EVENT_RATE)
    assert set(got.values()) == {1} and not got - expected
    assert {window for window in expected if window[1] < last} <= set(got)


def cancelled(job: RunningJob) -> None:
    job.client.cancel()
    assert job.wait_until_ended().outcome == "cancelled"


def ready(status: JobStatus) -> bool:
    return status.standby is not None and status.standby.ready


@pytest.mark.promise("F2", "D11")
def test_a_standby_takes_over_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    with RunningJob(tmp_path, "windows", rows=ROWS, rate=20_000, standby=True) as job:
        status = job.wait_for("a standby", ready)
        first, standby, epoch = jobmaster_of(job), job.supervisor.standby_pid, status.epoch
        killed_s = time.monotonic()
        os.kill(first, signal.SIGKILL)
        status = job.wait_for("generation 2", lambda s: s.generation == 2 and s.running)
        took_s = time.monotonic() - killed_s
        assert job.supervisor.master_pid == standby and status.epoch >= epoch
        assert status.jobmaster_deaths == 1
        job.wait_for("more epochs", lambda s: s.epoch >= epoch + 10)
        assert not session_processes(first)
        cancelled(job)
    check_committed(job.table("sums"))
    assert job.crashes == ["the JobMaster died (signal SIGKILL while it was running the job); its standby takes over"]
    print(f"running again after {took_s:.1f} s")
    assert "taking over: the JobMaster is gone" in job.log()
    (restart,) = [r for r in job.client.timeline().restarts if r.cause == "jobmaster_lost"]
    assert restart.detail == "signal SIGKILL while it was running the job"


TRIES = 3


def records(store: Path) -> list[LogRecord]:
    files = sorted((store / "windows" / "log").glob("*.json"))
    return [msgspec.json.decode(file.read_bytes(), type=LogRecord) for file in files]


@pytest.mark.promise("F2", "D11")
def test_a_jobmaster_that_was_stopped_and_replaced_publishes_nothing_when_it_goes_on_and_says_so(
    tmp_path: Path,
) -> None:
    """The first supervisor is not polled, as if its machine slept together with the JobMaster."""
    with ExitStack() as stack:

        def start(number: int) -> RunningJob:
            return stack.enter_context(RunningJob(tmp_path, "windows", rows=ROWS, rate=20_000, id=f"start {number}"))

        job = start(0)
        for number in range(1, TRIES + 1):
            job.completed(2)
            stopped, old = jobmaster_of(job), job
            os.kill(stopped, signal.SIGSTOP)
            job = start(number)
            job.wait_for("the next generation", lambda s, g=number + 1: s.generation == g)
            os.kill(stopped, signal.SIGCONT)
            ended = old.wait_until_ended()
            assert ended.outcome == "fenced" and "started anew" in ended.reason
            assert job.log().count("it can publish and commit nothing any more") == number
        job.completed(2)
        cancelled(job)
    found = records(tmp_path)
    fences = [record.owner for record in found if record.kind is RecordKind.FENCE]
    assert len(fences) == TRIES + 1
    owners = [record.owner for record in found]
    assert owners == sorted(owners, key=fences.index), "a record of a JobMaster comes after its successor's fence"
    check_committed(job.table("sums"))
