"""What a script sees of a job that fails beside it. On Spark: tests/cluster/test_attached.py."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from engine.api import StreamEnvironment
from engine.connectors.table import TableSink
from engine.core.errors import JobFailed, RaisedInSlot, SparkLost
from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster.actions import Outcome
from engine.jobmaster.events import AttemptFailed, Running
from engine.observe.client import JobClient
from engine.process.attached import AttachedJob
from engine.protocol.failures import Raised

RAISED = Raised("ValueError", "bad", "job.py:7", "record 3", "{'n': 1}", '  File "job.py", line 7\nValueError: bad')


class Process:
    """Stands for the JobMaster inside of the script: ends, or raises."""

    def __init__(self, end: MasterExit | Exception) -> None:
        self._end = end

    def run(self) -> MasterExit:
        if isinstance(self._end, Exception):
            raise self._end
        return self._end


def attached(store: Path, end: MasterExit | Exception) -> AttachedJob:
    job: Any = AttachedJob.__new__(AttachedJob)
    job.client = JobClient(str(store), "numbers")
    job._launch = MasterLaunch(path="", name="numbers", store=str(store), max_slots=1)
    job._folder = RunFolder(store, "numbers")
    job._folder.prepare()
    job._process, job._end = Process(end), None
    job._thread = threading.Thread(target=job._run)
    job._thread.start()
    made: AttachedJob = job
    return made


@pytest.mark.promise("F3")
def test_a_function_that_raised_is_the_cause_of_the_failure_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="job 'numbers' failed: operator 'clean'") as caught:
        attached(tmp_path, MasterExit(Outcome.FAILED, "operator 'clean': ValueError: bad", RAISED)).wait()
    assert str(caught.value).endswith("ValueError: bad (job.py, line 7)")
    cause = caught.value.__cause__
    assert isinstance(cause, RaisedInSlot) and cause.raised == RAISED
    assert str(cause) == "record 3 {'n': 1}\n" + RAISED.traceback


@pytest.mark.promise("H8")
def test_a_session_that_died_ends_the_job_and_says_what_to_do(tmp_path: Path) -> None:
    job = attached(tmp_path, SparkLost("Spark's JVM is gone: Connection refused"))
    with pytest.raises(
        JobFailed, match=r"Spark's JVM is gone.*Start the script again: the job goes on from its last epoch"
    ):
        job.wait()
    ended = RunFolder(tmp_path, "numbers").read_exit()
    assert ended is not None and ended.outcome is Outcome.FAILED


@pytest.mark.promise("F3")
def test_each_failed_attempt_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = attached(tmp_path, MasterExit(Outcome.FINISHED, "all done"))
    job._show_failure(Running("1.1"))
    job._show_failure(AttemptFailed("1.1", "user_code", "operator 'clean': ValueError: bad"))
    assert capsys.readouterr().err == "weir: attempt 1.1 of numbers failed: operator 'clean': ValueError: bad\n"
    assert job.wait().outcome is Outcome.FINISHED


def test_the_result_names_outcome_epoch_and_tables(tmp_path: Path) -> None:
    env = StreamEnvironment(parallelism=1)
    rows = env.from_elements([{"n": 1}], "n long")
    rows.sink_to(TableSink("own"), uid="one")
    rows.sink_to(TableSink("/lake/other"), uid="two")
    rows.print(uid="shown")
    job: Any = attached(tmp_path, MasterExit(Outcome.FINISHED, "all records are processed"))
    job._graph = env.build("numbers")
    result = job.result()
    assert (result.outcome, result.reason, result.epoch) == (Outcome.FINISHED, "all records are processed", 0)
    assert result.tables == {"one": f"{tmp_path}/numbers/tables/own", "two": "/lake/other"}
