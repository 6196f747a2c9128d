"""Goal: bad input and faults give one clear error and a non-zero exit, leave no process, and lose nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from engine.core.paths import JobPaths
from engine.snapshot.epoch_log import EpochLog
from engine.store.opening import open_store
from tests.cli.command import WEIR, weir
from tests.cluster import jobs
from tests.cluster.harness import RunningJob, session_processes
from tests.cluster.jobs import make
from tests.cluster.test_recovery import expected_windows, got_windows, spark_read


def test_a_users_function_that_raises_is_named_and_nothing_is_lost_once_it_is_mended(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    result = weir("run", "tests.cluster.jobs:raises", "--param", f"broken={broken}", store=tmp_path)
    assert result.returncode == 1
    assert "operator 'map-1', subtask" in result.stderr
    assert "'value': 777" in result.stderr and "ZeroDivisionError: value 777 is not allowed" in result.stderr
    assert "record " in result.stderr
    assert "Traceback" not in result.stderr
    line = f'  File "{jobs.__file__}", line {check_line()}, in check'
    assert line in result.stderr and "engine/" not in result.stderr.partition(line)[2].partition("log:")[0]
    assert "the same error 2 times" in result.stderr, "the same record at the same line is not tried three times"
    for command in (["restarts", "raises"], ["logs", "raises", "--operator", "map-1"]):
        shown = weir(*command, store=tmp_path).stdout
        assert line in shown and "ZeroDivisionError: value 777 is not allowed" in shown
    broken.unlink()
    with RunningJob(tmp_path, "raises", broken=broken) as job:
        assert job.wait_until_ended().outcome == "finished"
    values = np.sort(job.table("rows").column("value").to_numpy())
    assert np.array_equal(values, np.sort(make(np.arange(20_000))["value"]))


def check_line() -> int:
    lines = Path(jobs.__file__).read_text().splitlines()
    return 1 + next(number for number, line in enumerate(lines) if "raise ZeroDivisionError(" in line)


def test_records_that_do_not_have_the_declared_schema_end_the_job_with_both_schemas(tmp_path: Path) -> None:
    with RunningJob(tmp_path, "wrong_schema") as job:
        ended = job.wait_until_ended()
    assert ended.outcome == "failed"
    assert "made no column 'amount'" in ended.reason


def file_of_the_last_epoch(store: Path, job: str) -> Path:
    """Returns a state file that the next start reads. The newest folder may be that of an unfinished checkpoint."""
    log = EpochLog(open_store(str(store)), JobPaths(job))
    manifest = log.read_manifest(next(log.epochs()))
    assert not manifest.final, "the job has finished, and nothing would be restored"
    return store / next(file.path for subtask in manifest.subtasks for file in subtask.files)


def test_a_state_file_changed_by_one_bit_stops_the_job_until_it_is_rewound(tmp_path: Path) -> None:
    with RunningJob(tmp_path, "windows", rows=200_000, rate=20_000) as job:
        job.completed(5)
    newest = file_of_the_last_epoch(tmp_path, "windows")
    good = newest.read_bytes()
    newest.write_bytes(
        good[:200] + bytes([good[200] ^ 1]) + good[201:]
    )  # other damage: tests/snapshot/test_statefile.py
    with RunningJob(tmp_path, "windows", rows=200_000, rate=20_000) as job:
        ended = job.wait_until_ended()
    assert ended.outcome == "failed"
    assert newest.name in ended.reason and "is not what was written" in ended.reason
    older = [
        r for r in range(1, 99) if (tmp_path / "windows" / "tables" / "sums" / "_spark_metadata" / str(r)).exists()
    ]
    assert older, "there is something to hide"
    result = weir(
        "run", "tests.cluster.jobs:windows", "--param", "rows=200000", "--param", "rate=0", "--rewind", store=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert "going back to epoch" in result.stdout
    assert got_windows(spark_read(tmp_path / "windows" / "tables" / "sums", tmp_path)) == expected_windows(200_000)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_store_fails_checkpoints_and_loses_nothing_once_there_is_room(tmp_path: Path) -> None:
    """Topology: the window job, its store on a tmpfs of 16 MiB. Fault: the tmpfs is filled up, and freed later."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "weir-test", str(tmp_path)], check=True)
    try:
        with RunningJob(tmp_path, "windows", rows=400_000) as job:
            job.completed(2)
            ballast = tmp_path / "ballast"
            with pytest.raises(OSError, match="No space"), ballast.open("wb") as file:
                while True:
                    file.write(b"0" * 4096)
                    file.flush()
            job.wait_for("a failed checkpoint", lambda s: s.checkpoints.failed >= 1)
            time.sleep(1)
            ballast.unlink()
            assert job.wait_until_ended().outcome == "finished"
        assert got_windows(job.table("sums")) == expected_windows(400_000)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.promise("A1")
def test_weir_run_shows_what_print_sinks_print_and_nothing_outlives_it_when_it_is_killed(tmp_path: Path) -> None:
    environ = {**os.environ, "WEIR_STORE": str(tmp_path)}
    terminal = tmp_path / "terminal"
    with terminal.open("wb") as out:
        run = subprocess.Popen([*WEIR, "run", "tests.cluster.jobs:chatty"], env=environ, stdout=out)
    address = tmp_path / "chatty" / "run" / "master.json"
    try:
        deadline = time.monotonic() + 180
        while "\n0> {'key': 0, 'value': 500, " not in terminal.read_text():
            assert time.monotonic() < deadline and run.poll() is None
            time.sleep(0.1)
        shown = terminal.read_text()
        assert "printed" not in shown and "logged" not in shown, "only the sink's records"
        master = int(address.read_text().split('"pid":')[1].split(",")[0])
        assert session_processes(master)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    deadline = time.monotonic() + 120
    while session_processes(master):
        assert time.monotonic() < deadline, f"left behind: {session_processes(master)}"
        time.sleep(0.2)
