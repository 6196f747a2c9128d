"""Goal: a drill of the live job strikes only what it may, says what it did, and audits what readers read.

Topology: the page-view job under a real supervisor on real Spark, with a table; the command `weir drill --live`.
Fault: SIGKILL of a slot of the running job. Checks: the cause in its history, the job goes on, the audit of its table,
the record. What may be struck is decided without a job.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from assets.pageviews.drill import DRILL
from checks.catalogue import CATALOGUE
from checks.live.drill import RESULT, LiveDrill, RunningProcesses, choose_live, live_faults
from checks.processes import JobProcesses, Role
from checks.records import read_records
from checks.results import Verdict
from engine.core.errors import WeirError
from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterAddress
from engine.observe.client import JobClient
from engine.process.submit import start_detached
from tests.checks.test_drill import WEIR


@pytest.mark.promise("H2")
def test_a_live_job_is_only_killed_and_never_left_without_a_supervisor() -> None:
    assert live_faults() == [
        "slot-killed",
        "daemon-killed",
        "jvm-killed",
        "jobmaster-killed",
        "daemon-and-slot-killed",
        "jobmaster-and-slot-killed",
        "jobmaster-killed-in-recovery",
    ]
    drawn = {fault.name for seed in range(100) for fault in choose_live(["random"], seed)}
    assert drawn == set(live_faults())
    assert choose_live(["jvm-killed"], 1) == [CATALOGUE["jvm-killed"]]
    for refused in ("slot-stopped", "supervisor-killed", "store-slow", "slot-killed-before-ack"):
        with pytest.raises(WeirError, match=rf"{refused}: a live job is only killed.*name one of slot-killed, "):
            choose_live([refused], 1)


@pytest.mark.promise("H2")
def test_a_process_that_the_job_has_not_started_here_is_no_victim(tmp_path: Path) -> None:
    client = JobClient(str(tmp_path), "pageviews")
    assert RunningProcesses(client).all() == []
    child = subprocess.Popen(["sleep", "600"])
    try:
        client.folder.prepare()
        client.folder.write_address(MasterAddress("http://127.0.0.1:1", os.getpid(), 1, ""))
        found = RunningProcesses(client)
        assert child.pid in [one.pid for one in found.all()], "a child of the JobMaster"
        assert found.slot(child.pid) is None and found.of(Role.SLOT) == [], "but no slot"
        assert 1 not in [one.pid for one in found.all()]
    finally:
        child.kill()
        child.wait()


@pytest.mark.promise("H2", "H4")
def test_a_worker_of_the_running_job_is_killed_and_its_live_tables_are_audited(tmp_path: Path) -> None:
    params = {**DRILL.params, "rate": "5000", "interval": "1 s"}
    launch = MasterLaunch(
        path=DRILL.path, name=DRILL.job, params=params, parallelism=2, store=str(tmp_path), max_slots=2
    )
    client = JobClient(str(tmp_path), DRILL.job)
    processes = JobProcesses()
    with processes.marking():
        start_detached(launch, "test")
    try:
        client.wait_until_running(300)
        environ = {**os.environ, "WEIR_STORE": str(tmp_path), "COLUMNS": "180", "NO_COLOR": "1"}
        run = subprocess.run(
            [*WEIR, "drill", DRILL.job, "--live", "--seed", "7"],
            capture_output=True,
            text=True,
            env=environ,
            timeout=600,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        assert run.stdout.index("the LIVE job pageviews: kills one slot") < run.stdout.index("kill -9: slot")
        status = client.status()
        assert status.running and status.restarts == 1, "the job goes on"
    finally:
        client.cancel()
        client.wait_until_ended(120)
    (file,) = (tmp_path / "drills" / DRILL.job).glob(f"*/{RESULT}")
    written = msgspec.json.decode(file.read_bytes(), type=LiveDrill)
    (victim,) = written.drill.faults
    assert victim.cause.startswith("slot_lost: ") and str(victim.pid) in victim.cause and victim.recovery_s > 0
    assert written.audit is not None and written.audit.verdict is Verdict.PASSED
    assert written.audit.epoch > victim.epoch and written.audit.figures["rows_read"] > 0
    (record,) = read_records(tmp_path, DRILL.job)
    assert record.live and record.verdict is Verdict.PASSED and record.blows == [victim]
    assert processes.end(120) == [], "processes outlived the job"
