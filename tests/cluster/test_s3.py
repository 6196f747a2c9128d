"""Goal: a job whose store is a bucket loses and doubles nothing, can be moved to another machine with nothing but the
bucket, and keeps its credentials to itself.

Topology: a real MinIO server; two source subtasks → keyed exchange → two window subtasks → Weir table in the bucket;
two slots on local Spark. A machine is a state folder. Faults: SIGKILL of a slot and of the JobMaster, a server that
answers 500, loses answers and refuses for seconds, a second machine that starts the job. Checks: rows by
`spark.read.parquet("s3a://…")` and by Weir's own reader against numpy; every object, file, process argument and page of
Spark for the secret.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from minio.error import S3Error

from engine.core.errors import NotRunning
from engine.core.paths import JobPaths
from engine.observe.client import JobClient, known_jobs
from engine.observe.history import History
from engine.observe.timeline import Timeline
from engine.protocol.failures import AttemptFailure
from engine.store.opening import open_store, shown
from tests.cluster import harness
from tests.cluster.harness import RunningJob
from tests.cluster.test_recovery import expected_windows, got_windows, jobmaster_of
from tests.servers import s3a
from tests.servers.faulty import Fault, FaultyProxy
from tests.servers.minio import MinioServer

ROWS = 400_000

READ_WITH_SPARK = """
import os, sys
from engine.spark.scratch import private_scratch
from engine.spark.session import start_session
conf = {
    "spark.driver.extraClassPath": sys.argv[3],
    "spark.hadoop.fs.s3a.endpoint": os.environ["AWS_ENDPOINT_URL"],
    "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    "spark.hadoop.fs.s3a.path.style.access": "true",
}
with private_scratch() as scratch:
    spark = start_session("reader", 1, 1, scratch=scratch, conf=conf)
    spark.read.parquet(sys.argv[1]).toPandas().to_parquet(sys.argv[2])
    spark.stop()
"""


@pytest.fixture
def store(minio_server: MinioServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    minio_server.use(monkeypatch)
    monkeypatch.setenv("WEIR_STATE", str(tmp_path / "one"))
    monkeypatch.setattr(harness, "PATIENCE_S", 240)
    return f"s3://weir/{tmp_path.name}"


@pytest.fixture
def proxy(store: str, minio_server: MinioServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    faulty = FaultyProxy(minio_server.endpoint)
    with faulty.running() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        yield faulty


def spark_read(address: str, tmp_path: Path) -> pa.Table:
    """Reads a table as a user does, over s3a, in another Spark application; credentials are in the environment."""
    out = tmp_path / "read.parquet"
    command = [sys.executable, "-c", READ_WITH_SPARK, address, str(out), s3a.class_path()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return pq.read_table(out)


def places_with(secret: bytes, server: MinioServer, folder: Path) -> tuple[list[str], int]:
    """Returns where a secret is found in the bucket, the files below a folder and all arguments; and how much was
    searched."""
    found, searched = [], 0
    client = server.client
    for entry in client.list_objects("weir", recursive=True):
        try:
            answer = client.get_object("weir", str(entry.object_name))
        except S3Error as error:
            assert error.code == "NoSuchKey", error
            continue  # the job runs, and has deleted it since it was listed
        if secret in answer.read():
            found.append(f"object {entry.object_name}")
        answer.close()
        answer.release_conn()
        searched += 1
    for path in [*folder.rglob("*"), *Path("/proc").glob("[0-9]*/cmdline")]:
        try:
            content = path.read_bytes()
        except OSError:
            continue
        found += [str(path)] * (secret in content)
        searched += 1
    return found, searched


@pytest.mark.promise("C2", "D11", "F2", "G1")
def test_killed_processes_lose_and_double_nothing_and_spark_reads_the_table_over_s3a(
    store: str, minio_server: MinioServer, tmp_path: Path
) -> None:
    secret = minio_server.environ["AWS_SECRET_ACCESS_KEY"].encode()
    with RunningJob(store, "windows", rows=ROWS, rate=8_000, conf={"spark.ui.enabled": "true"}) as job:
        status = job.completed(2)
        for page in ("/environment/", "/api/v1/applications"):
            seen = httpx.get(f"{status.spark_ui}{page}", follow_redirects=True, timeout=60)
            assert seen.status_code == 200 and secret.decode() not in seen.text
        os.kill(status.slots[0].pid, signal.SIGKILL)
        job.wait_for("the second attempt", lambda s: s.attempt == 2 and s.running)
        epoch = job.completed(4).epoch
        job.wait_for("the restart in the bucket", lambda _: Timeline(History(store, "windows").events()).restarts)
        os.kill(jobmaster_of(job), signal.SIGKILL)
        status = job.wait_for("the second generation", lambda s: s.generation == 2 and s.running)
        assert status.epoch >= epoch, "it did not go on from the last epoch"

        found, searched = places_with(secret, minio_server, tmp_path)
        assert found == [] and searched > 100
        assert places_with(b"tests.cluster.jobs", minio_server, tmp_path)[0], "the search finds what is there"
        assert job.wait_until_ended().outcome == "finished"
    assert got_windows(job.table("sums")) == expected_windows(ROWS)
    table = shown(open_store(store), JobPaths("windows").table("sums"))
    assert table.startswith("s3a://weir/")
    assert got_windows(spark_read(table, tmp_path)) == expected_windows(ROWS)
    timeline = job.client.timeline()
    assert timeline.last_completed is not None
    causes = [restart.cause for restart in timeline.restarts]
    assert "jobmaster_lost" in causes and AttemptFailure.SLOT_LOST.code in causes
    assert places_with(secret, minio_server, tmp_path)[0] == []


@pytest.mark.promise("C2", "H8")
def test_a_job_goes_on_after_its_bucket_was_away_and_nothing_is_lost(store: str, proxy: FaultyProxy) -> None:
    """Three outages of some seconds: errors before the work, errors after it, lost answers."""
    with RunningJob(store, "windows", rows=ROWS, rate=20_000) as job:
        for fault in (Fault.REFUSE, Fault.FAIL_AFTER, Fault.LOSE_ANSWER):
            epoch = job.completed(1).epoch
            proxy.decide = lambda method, address, fault=fault: fault
            time.sleep(4)
            proxy.decide = lambda method, address: None
            job.wait_for("the next epoch", lambda s, epoch=epoch: s.epoch > epoch + 1)
        assert job.wait_until_ended().outcome == "finished"
    assert got_windows(job.table("sums")) == expected_windows(ROWS)


@pytest.mark.promise("C2", "F2")
def test_another_machine_goes_on_with_nothing_but_the_bucket(
    store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first machine still runs the job when the second starts it: it is fenced, and does not come back."""
    with RunningJob(store, "windows", rows=ROWS, rate=2_000, id="first") as first:
        epoch = first.completed(3).epoch
        monkeypatch.setenv("WEIR_STATE", str(tmp_path / "two"))
        assert known_jobs(store) == ["windows"]
        with pytest.raises(NotRunning, match="was started last on"):
            JobClient(store, "windows").status()
        with RunningJob(store, "windows", rows=ROWS, rate=40_000, id="second") as second:
            status = second.wait_for("running", lambda s: s.running)
            assert status.generation == 2 and status.epoch >= epoch
            monkeypatch.setenv("WEIR_STATE", str(tmp_path / "one"))
            assert first.wait_until_ended().outcome == "fenced"
            monkeypatch.setenv("WEIR_STATE", str(tmp_path / "two"))
            assert second.wait_until_ended().outcome == "finished"
    assert got_windows(second.table("sums")) == expected_windows(ROWS)
    attempts = {record.attempt for record in second.client.timeline().checkpoints}
    assert {attempt[0] for attempt in attempts} == {"1", "2"}, "the history of both is in the bucket"
