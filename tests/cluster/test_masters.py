"""Goal: on every kind of Spark master the same job gives the same table, even if processes of the cluster are killed.

Topology: two source subtasks → keyed exchange → two window subtasks → Weir table, as tasks of `local-cluster` and of a
standalone cluster (one master, two workers with a Python that can't see this checkout). Faults: SIGKILL of a Python
worker, of an executor's JVM, of a Spark worker daemon; SIGSTOP of an executor with its Python workers. Checks: results
against numpy, and that no process is left.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.cli.main import app
from tests.cluster.harness import RunningJob
from tests.cluster.standalone import StandaloneCluster, executor_of, with_children
from tests.cluster.test_attached import SCRIPT, result
from tests.cluster.test_recovery import expected_windows, got_windows

RECORDS = 1_500_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    folder = tmp_path / "spark"
    folder.mkdir()
    with StandaloneCluster(folder) as made:
        yield made


@pytest.mark.promise("F1", "D1")
def test_a_standalone_cluster_may_lose_a_python_worker_an_executor_and_a_spark_worker(
    tmp_path: Path, cluster: StandaloneCluster
) -> None:
    conf = {"spark.pyspark.python": cluster.python, "spark.executor.memory": "512m", "spark.executor.cores": "1"}
    with RunningJob(tmp_path, "windows", spark_master=cluster.url, conf=conf, rows=RECORDS) as job:
        running = job.completed(2)
        os.kill(running.slots[0].pid, signal.SIGKILL)
        job.wait_for("an attempt after the Python worker", lambda s: s.attempt == 2 and s.running)
        status = job.completed(4)
        done = status.checkpoints.completed

        os.kill(executor_of(status.slots[0].pid), signal.SIGKILL)
        again = job.wait_for("an attempt after the executor", lambda s: s.attempt > 2 and s.running)
        job.completed(done + 2)

        pid = job.client.status().slots[0].pid
        cluster.worker_of(pid).kill()  # the other worker has cores for two slots
        job.wait_for("an attempt after the Spark worker", lambda s: s.attempt > again.attempt and s.running)
        assert job.wait_until_ended().outcome == "finished"
        assert got_windows(job.table("sums")) == expected_windows(RECORDS)
        assert job.client.folder.read_exit() is not None


@pytest.mark.promise("F1")
def test_spark_submit_runs_a_script_with_an_archive_where_nobody_sees_the_checkout(
    tmp_path: Path, cluster: StandaloneCluster
) -> None:
    """Driver and workers have nothing of Weir but the archive that `weir package` made."""
    packaged = CliRunner().invoke(app, ["package", "tests.cluster.jobs:windows", "-o", str(tmp_path)])
    assert packaged.exit_code == 0, packaged.output
    script = shutil.copy(SCRIPT, tmp_path)
    conf = {
        "spark.pyspark.python": cluster.python,
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    done = cluster.submit(
        *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
        *("--py-files", str(tmp_path / "weir-job.zip")),
        *(str(script), cluster.url, str(tmp_path / "store"), "kill"),
    )
    found = result(done)
    assert sum(rows for _, _, rows, _ in found["rows"]) == 60_000
    assert found["outcome"] == "finished" and found["restarts"] >= 1


@pytest.mark.promise("F1", "D1")
def test_a_local_cluster_loses_nothing_with_a_python_worker_and_an_executor(tmp_path: Path) -> None:
    with RunningJob(tmp_path, "windows", spark_master="local-cluster[2,1,1024]", rows=RECORDS) as job:
        os.kill(job.completed(2).slots[1].pid, signal.SIGKILL)
        job.wait_for("the second attempt", lambda s: s.attempt == 2 and s.running)
        os.kill(executor_of(job.completed(4).slots[0].pid), signal.SIGKILL)
        job.wait_for("an attempt after the executor", lambda s: s.attempt > 2 and s.running)
        assert job.wait_until_ended().outcome == "finished"
        assert got_windows(job.table("sums")) == expected_windows(RECORDS)


@pytest.mark.promise("H8")
def test_an_executor_that_is_unreachable_is_removed_long_before_spark_would(tmp_path: Path) -> None:
    with RunningJob(tmp_path, "windows", spark_master="local-cluster[2,1,1024]", rows=0) as job:
        stopped = with_children(executor_of(job.completed(2).slots[0].pid))
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        after = job.wait_for("another executor", lambda s: s.attempt > 1 and s.running)
        assert after.last_failure is not None and after.last_failure.cause == "slot_silent"
        assert "did not end a silent slot in 4 s: removing it" in job.log()
