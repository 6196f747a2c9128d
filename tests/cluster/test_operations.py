"""Goal: HTTP and `weir` answer every question about a job, also after it has ended.

Topology: two source subtasks, chained with a map that prints and logs and with a print sink; two slots on local Spark.
Faults: SIGKILL of a slot, then of the JobMaster. Checks: every route and command; history and logs span both kills;
Spark's UI can't kill; a secret that Spark is given is in no argument and in no file.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from engine.jobmaster.status import JobStatus
from tests.cluster.harness import RunningJob
from tests.cluster.test_bad_input import weir
from tests.observe.test_http import parse

SECRET = "not-for-other-users-7f3a"


def said(*arguments: str, store: Path) -> str:
    done = weir(*arguments, store=store)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(*arguments: str, store: Path) -> Any:
    return json.loads(said(*arguments, "--json", store=store))


def get(job: RunningJob, path: str) -> httpx.Response:
    address = job.client.folder.read_address()
    assert address is not None
    return httpx.get(
        address.url + path, headers={"authorization": f"Bearer {address.token}"}, timeout=60
    ).raise_for_status()


@pytest.mark.promise("F1", "F2", "F3")
def test_everything_that_can_be_asked_of_a_job_survives_its_slots_and_jobmasters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_S3_KEY", SECRET)
    conf = {"spark.ui.enabled": "true", "spark.hadoop.fs.s3a.secret.key": "env:TEST_S3_KEY"}
    with RunningJob(tmp_path, "chatty", conf=conf) as job:
        os.kill(job.completed(2).slots[0].pid, signal.SIGKILL)
        job.wait_for("the second attempt", lambda s: s.attempt == 2 and s.running)
        before = job.completed(4)
        _ask_spark(before)
        _look_for_kill_links(before)
        assert {address for address, _ in listening(job)} == {"127.0.0.1"}, "another machine could reach it"
        first = job.client.folder.read_address()
        assert job.supervisor.master_pid is not None and first is not None
        os.kill(job.supervisor.master_pid, signal.SIGKILL)
        job.wait_for("generation 2", lambda s: s.generation == 2 and s.running)
        _look_for_the_secret(job)
        second = job.client.folder.read_address()
        assert second is not None and second.token != first.token
        old_token = {"authorization": f"Bearer {first.token}"}
        assert httpx.get(f"{second.url}/job", headers=old_token, timeout=60).status_code == 401, (
            "it was the first JobMaster's"
        )
        job.completed(2)
        _ask_over_http(job, before)
        _ask_the_cli(tmp_path)
        assert "printed" in said("logs", "chatty", "--slot", "0", store=tmp_path)
        assert "0> {'key':" in job.log(), "print() still goes where it went"
    _ask_after_its_end(tmp_path)


def _ask_spark(status: JobStatus) -> None:
    """Checks what Spark's UI shows, through its REST interface: the job and its slots, including a replaced one."""
    spark = httpx.Client(base_url=f"{status.spark_ui}/api/v1/applications", timeout=60)
    (application,) = spark.get("").raise_for_status().json()
    (shown,) = spark.get(f"{application['id']}/jobs").raise_for_status().json()
    runs = f"slots 0–1: {status.vertices[0].label}"
    assert (shown["jobGroup"], shown["name"]) == ("weir chatty", "slots of chatty")
    assert shown["description"] == f"weir chatty: {runs}"
    (stage,) = spark.get(f"{application['id']}/stages").raise_for_status().json()
    assert stage["name"] == "slots of chatty" and runs in stage["details"]
    tasks = spark.get(f"{application['id']}/stages/{stage['stageId']}/0/taskList").raise_for_status().json()
    running = {task["taskId"]: task["index"] for task in tasks if task["status"] == "RUNNING"}
    assert running == {slot.task: slot.slot for slot in status.slots}, "Index is the slot"
    settings = dict(spark.get(f"{application['id']}/environment").raise_for_status().json()["sparkProperties"])
    assert settings["spark.authenticate"] == "true"
    assert settings["spark.hadoop.fs.s3a.secret.key"] == "*********(redacted)"


def _look_for_kill_links(status: JobStatus) -> None:
    """Spark's UI asks for no token: by its forms, which have one of their own, anybody could end the job."""
    for page in ("jobs/", "stages/"):
        shown = httpx.get(f"{status.spark_ui}/{page}", timeout=60).raise_for_status().text
        assert "slots of chatty" in shown and "/kill" not in shown and "csrfToken" not in shown


def _look_for_the_secret(job: RunningJob) -> None:
    """The replaced JobMaster has the secret again, by its name. Other users can read arguments, but no such file."""
    status = job.client.status()
    spark = httpx.Client(base_url=f"{status.spark_ui}/api/v1/applications", timeout=60)
    (application,) = spark.get("").raise_for_status().json()
    settings = dict(spark.get(f"{application['id']}/environment").raise_for_status().json()["sparkProperties"])
    assert settings["spark.hadoop.fs.s3a.secret.key"] == "*********(redacted)"
    processes = [psutil.Process(int(line.split(" ", 1)[0])) for line in job.processes()]
    arguments = " ".join(argument for process in processes for argument in process.cmdline())
    assert "SparkSubmit" in arguments and "pyspark" in arguments, "the JVM and the slots"
    assert "ExitOnOutOfMemoryError" in arguments, "options of the JVM are read from the same file"
    assert SECRET not in arguments and "spark.authenticate.secret" not in arguments
    folder = job.client.folder.folder.parent
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    launch = job.client.folder.launch_file
    assert "env:TEST_S3_KEY" in launch.read_text() and launch.stat().st_mode & 0o077 == 0


def listening(job: RunningJob) -> list[tuple[str, int]]:
    """Returns the addresses and ports at which the processes of a job listen: JobMaster, JVM, slots."""
    processes = [psutil.Process(int(line.split(" ", 1)[0])) for line in job.processes()]
    sockets = [socket for process in processes for socket in process.net_connections("tcp")]
    found = [(s.laddr.ip.removeprefix("::ffff:"), s.laddr.port) for s in sockets if s.status == psutil.CONN_LISTEN]
    assert len(found) == 5, "HTTP, PySpark's gateway, two ports of Spark, its UI; all else are sockets in a folder"
    return found


def _ask_over_http(job: RunningJob, before: JobStatus) -> None:
    status = get(job, "/job").json()
    assert status["restarts"] == 2 and status["uptime_ms"] < 60_000
    (vertex,) = status["vertices"]
    assert vertex == {**get(job, "/job/vertices/numbers").json(), **_moving(vertex)}
    # The exact rate depends on the backlog after the restart.
    assert vertex["rows_in_per_s"] > 0 and len(vertex["subtasks"]) == 2
    listed = get(job, "/checkpoints?limit=500").json()["checkpoints"]
    assert {c["attempt"] for c in listed} >= {"1.1", "1.2", "2.1"}
    last = msgspec.to_builtins(before.checkpoints.last)
    assert last in listed, "what an earlier JobMaster completed is still there"
    detail = get(job, f"/checkpoints/{last['checkpoint']}").json()
    assert [vertex["vertex"] for vertex in detail["vertices"]] == ["numbers"]
    assert detail["async_ms"] > 0 and detail["duration_ms"] >= detail["async_ms"]
    master, slot = get(job, "/restarts").json()
    assert (slot["cause"], slot["attempt"], slot["slot"] in (0, 1)) == ("slot_lost", "1.1", True)
    assert (master["cause"], master["attempt"]) == ("jobmaster_lost", "1.2")
    assert 0 < slot["recovery_ms"] < 30_000 and 0 < master["recovery_ms"] < 60_000
    assert get(job, "/events").json()[0]["generation"] <= 1
    metrics = parse(get(job, "/metrics").text)
    assert metrics["weir_restarts_total"] == [({"job": "chatty"}, 2)]
    assert all(lag >= 0 for _, lag in metrics["weir_rows_in_total"])


def _moving(vertex: dict[str, Any]) -> dict[str, Any]:
    fixed = ("id", "label", "operators", "parallelism", "finished")
    return {name: value for name, value in vertex.items() if name not in fixed}


def _ask_the_cli(store: Path) -> None:
    (job,) = read("jobs", store=store)
    assert (job["job"], job["state"], job["restarts"]) == ("chatty", "running", 2)
    assert "in/s" in said("status", "chatty", store=store) and "numbers[1]" in said("status", "chatty", store=store)
    assert read("status", "chatty", store=store)["phase"] == "running"
    assert "slot_lost" in said("restarts", "chatty", store=store)
    followed = said("logs", "tests.cluster.jobs:chatty", "--operator", "map-1", store=store)
    assert "printed" in followed and "INFO chatty: logged" in followed and "shown[" not in followed
    assert "0> {" in said("logs", "chatty", "--operator", "shown", store=store)


def _ask_after_its_end(store: Path) -> None:
    (job,) = read("jobs", store=store)
    assert (job["state"], job["restarts"]) == ("cancelled", 2) and job["ended_at_ms"] > job["started_at_ms"]
    causes = [restart["cause"] for restart in read("restarts", "chatty", store=store)]
    assert causes == ["jobmaster_lost", "slot_lost"]
    listed = read("checkpoints", "chatty", "--limit", "500", store=store)
    assert {c["attempt"] for c in listed} >= {"1.1", "1.2", "2.1"}
    last = next(c["checkpoint"] for c in listed if c["status"] == "completed")
    assert "start delay" in said("checkpoints", "chatty", str(last), store=store)
    assert read("checkpoints", "chatty", str(last), store=store)["vertices"][0]["subtasks"]
    lines = said("logs", "chatty", "-f", store=store)
    assert "master" in lines and "claimed under generation 2" in lines and "printed" in lines
    unknown = weir("checkpoints", "chatty", "99999", store=store)
    assert unknown.returncode == 1 and "weir checkpoints chatty lists those that are" in unknown.stderr
    assert weir("status", "chatty", store=store).returncode == 1
