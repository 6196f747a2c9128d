"""Which failures end a job: only its own."""

from __future__ import annotations

import pytest

from engine.protocol.failures import Fault
from engine.protocol.remedy import Death, Remedy, Stage, Where, death_of, fault_of_query, remedy


@pytest.mark.promise("H8")
@pytest.mark.parametrize("where", Where)
@pytest.mark.parametrize("fault", [Fault.OUTSIDE, Fault.WEIR])
@pytest.mark.parametrize("again", [False, True])
def test_what_is_not_the_job_s_own_fault_never_ends_it(where: Where, fault: Fault, again: bool) -> None:
    assert remedy(where, fault, again=again) is not Remedy.END


@pytest.mark.promise("H8")
def test_the_job_s_own_fault_ends_it_at_once_in_a_jobmaster_and_the_second_time_in_an_attempt() -> None:
    assert remedy(Where.JOBMASTER, Fault.JOB) is Remedy.END
    assert remedy(Where.ATTEMPT, Fault.JOB) is Remedy.RESTART
    assert remedy(Where.ATTEMPT, Fault.JOB, again=True) is Remedy.END


SAID = Death(Fault.OUTSIDE, "Spark's JVM is gone")


@pytest.mark.promise("H8")
@pytest.mark.parametrize(
    ("code", "stage", "words", "silent_s", "fault", "says"),
    [
        (-9, Stage.DECIDING, None, None, Fault.OUTSIDE, "signal SIGKILL while it was running the job"),
        (-11, Stage.LOADING, None, None, Fault.OUTSIDE, "signal SIGSEGV while it was loading the job"),
        (-9, Stage.DECIDING, None, 30.4, Fault.OUTSIDE, "no sign of life for 30 s while it was running the job"),
        (-9, Stage.DECIDING, SAID, 30.4, Fault.OUTSIDE, "Spark's JVM is gone"),
        (70, Stage.DECIDING, SAID, None, Fault.OUTSIDE, "Spark's JVM is gone"),
        (1, Stage.LOADING, Death(Fault.JOB, "no module 'x'"), None, Fault.JOB, "no module 'x'"),
        (3, Stage.LOADING, None, None, Fault.JOB, "the job's code ended the JobMaster's process (exit code 3)"),
        (1, None, None, None, Fault.WEIR, "exit code 1"),
        (71, Stage.DECIDING, None, None, Fault.OUTSIDE, "another process took the job over"),
        (0, Stage.DECIDING, None, None, Fault.WEIR, "exit code 0 while it was running the job"),
        (70, Stage.STARTING, None, None, Fault.WEIR, "exit code 70 while it was starting Spark"),
    ],
)
def test_the_end_of_a_jobmaster_s_process_has_one_cause(
    code: int, stage: Stage | None, words: Death | None, silent_s: float | None, fault: Fault, says: str
) -> None:
    death = death_of(code, stage, words, silent_s)
    assert isinstance(death, Death) and death.fault is fault and says in death.reason


def test_a_real_time_signal_has_a_number_and_no_name() -> None:
    assert death_of(-35, None, None) == Death(Fault.OUTSIDE, "signal 35")


SPARK = "org.apache.spark.SparkException"


@pytest.mark.promise("H8")
@pytest.mark.parametrize(
    ("java", "fault"),
    [
        (["org.apache.spark.sql.catalyst.ExtendedAnalysisException"], Fault.JOB),
        (["org.apache.spark.sql.catalyst.parser.ParseException"], Fault.JOB),
        (["org.apache.spark.api.python.PythonException"], Fault.JOB),
        ([SPARK, "org.apache.spark.api.python.PythonException"], Fault.JOB),
        (["org.apache.spark.SparkArithmeticException"], Fault.JOB),
        ([SPARK, "java.lang.ClassCastException"], Fault.JOB),
        ([SPARK], Fault.OUTSIDE),  # the executor was lost
        ([SPARK, "java.io.IOException"], Fault.OUTSIDE),  # the disk is full
        (["java.net.ConnectException"], Fault.OUTSIDE),
        (["org.apache.hadoop.fs.ParentNotDirectoryException"], Fault.OUTSIDE),
        (["org.apache.spark.sql.AnalysisException", "java.net.ConnectException"], Fault.OUTSIDE),  # the catalogue
        (["org.apache.spark.api.python.PythonException", "java.io.EOFException"], Fault.OUTSIDE),  # a killed worker
        ([SPARK, "java.lang.OutOfMemoryError"], Fault.OUTSIDE),
        (["com.example.NobodyKnows"], Fault.OUTSIDE),
    ],
)
def test_a_query_that_spark_can_not_run_is_the_job_s_fault_unless_a_disk_network_or_store_is_in_the_chain(
    java: list[str], fault: Fault
) -> None:
    assert fault_of_query(java) is fault
