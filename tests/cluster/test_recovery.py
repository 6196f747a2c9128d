"""Goal: if a process of a running job dies or hangs, the table is exactly that of a run without faults.

Topology: two source subtasks → keyed exchange → two window (or process) subtasks → Weir table; two slots on local
Spark. Faults: SIGKILL and SIGSTOP of a slot, of the JobMaster and of its JVM. Checks: results by plain
`spark.read.parquet` against numpy, and that no process is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from engine.process import child
from engine.protocol.failures import Fault
from tests.cluster.harness import RunningJob, session_processes
from tests.cluster.jobs import make

READ_WITH_SPARK = """
import sys
from engine.spark.scratch import private_scratch
from engine.spark.session import start_session
with private_scratch() as scratch:
    spark = start_session("reader", 1, 1, scratch=scratch)
    spark.read.parquet(sys.argv[1]).toPandas().to_parquet(sys.argv[2])
    spark.stop()
"""


def spark_read(table: Path, tmp_path: Path) -> pa.Table:
    """Reads a table as a user does: with plain spark.read.parquet, in another Spark application."""
    out = tmp_path / "read.parquet"
    subprocess.run([sys.executable, "-c", READ_WITH_SPARK, str(table), str(out)], check=True, capture_output=True)
    return pa.parquet.read_table(out)


def expected_windows(rows: int) -> Counter[tuple[int, int, int, int]]:
    columns = make(np.arange(rows, dtype=np.int64))
    seconds = columns["ts"] // 1_000_000
    table = pa.table({"key": columns["key"], "second": seconds, "value": columns["value"]})
    grouped = table.group_by(["key", "second"]).aggregate([([], "count_all"), ("value", "sum")])
    names = ("key", "second", "count_all", "value_sum")
    return Counter(zip(*(grouped.column(name).to_pylist() for name in names), strict=True))


def got_windows(table: pa.Table) -> Counter[tuple[int, int, int, int]]:
    starts = (table.column("window_start").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()) // 1_000_000
    columns = [table.column("key").to_pylist(), starts.tolist()]
    return Counter(zip(*columns, table.column("rows").to_pylist(), table.column("sum").to_pylist(), strict=True))


@pytest.mark.promise("A1", "A3", "B1", "B4", "D1", "D11")
def test_killed_and_hung_slots_lose_and_double_nothing(tmp_path: Path) -> None:
    with RunningJob(tmp_path, "windows", heartbeat_timeout_s=8) as job:
        status = job.completed(2)
        assert status.spark_ui is None, "nobody asked for it"
        os.kill(status.slots[0].pid, signal.SIGKILL)
        job.wait_for("the second attempt", lambda s: s.attempt == 2 and s.running)
        stopped = job.completed(4).slots[1].pid
        os.kill(stopped, signal.SIGSTOP)
        status = job.wait_for("the third attempt", lambda s: s.attempt == 3 and s.running)
        assert stopped not in [slot.pid for slot in status.slots]
        assert status.last_failure.cause == "slot_silent"
        assert job.wait_until_ended().outcome == "finished"
    table = spark_read(tmp_path / "windows" / "tables" / "sums", tmp_path)
    assert got_windows(table) == expected_windows(600_000)


@pytest.mark.promise("D11", "F2", "H8")
def test_a_jobmaster_that_is_killed_or_hangs_or_loses_its_spark_is_replaced_and_goes_on(tmp_path: Path) -> None:
    with RunningJob(tmp_path, "windows", rows=600_000, jobmaster_timeout_s=4) as job:
        epoch = 0
        for generation, (victims, number) in enumerate(
            [([jobmaster_of], signal.SIGKILL), ([java_of], signal.SIGKILL), ([java_of, jobmaster_of], signal.SIGSTOP)],
            start=1,
        ):
            status = job.completed(2)
            assert status.generation == generation and status.epoch > epoch, "it did not go on from the last epoch"
            assert status.jobmaster_deaths == generation - 1
            epoch = status.epoch
            for pid in [victim(job) for victim in victims]:
                os.kill(pid, number)
            job.wait_for(f"generation {generation + 1}", lambda s, g=generation: s.generation == g + 1)
        assert job.wait_until_ended().outcome == "finished"
    assert got_windows(job.table("sums")) == expected_windows(600_000)
    killed, lost, hung = job.crashes
    assert killed == "the JobMaster died (signal SIGKILL while it was running the job); starting another"
    assert "SparkLost: " in lost
    assert "it gave no sign of life for" in hung and "while it was running the job, and was killed" in hung
    restarts = [r for r in job.client.timeline().restarts if r.cause == "jobmaster_lost"]
    assert len(restarts) == 3 and restarts[-1].detail == "signal SIGKILL while it was running the job"


CONFUSED = """
import sys
from engine.jobmaster.master import JobMaster
from engine.process import master_main
ticks = JobMaster.on_tick
def on_tick(self, now_ms):
    if self.newest is not None and self.newest.epoch >= 2:
        raise KeyError("planted")
    return ticks(self, now_ms)
JobMaster.on_tick = on_tick
master_main.main()
"""


@pytest.mark.promise("F2", "H8")
def test_an_unexpected_error_on_the_deciding_thread_replaces_the_jobmaster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen, started = subprocess.Popen, []

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(command)
        first = [sys.executable, "-c", CONFUSED, *command[3:]]
        return popen(first if len(started) == 1 else command, **options)

    monkeypatch.setattr(child.subprocess, "Popen", start)
    with RunningJob(tmp_path, "windows", rows=200_000) as job:
        for generation in (1, 2):
            job.wait_for(f"generation {generation}", lambda s, g=generation: s.generation == g)
        assert job.wait_until_ended().outcome == "finished"
    assert job.crashes == ["the JobMaster died (KeyError: 'planted'); starting another"]
    deaths = job.client.folder.read_deaths()
    assert deaths is not None and deaths.fault is Fault.WEIR
    assert got_windows(job.table("sums")) == expected_windows(200_000)


def jobmaster_of(job: RunningJob) -> int:
    assert job.supervisor.master_pid is not None
    return job.supervisor.master_pid


def java_of(job: RunningJob) -> int:
    (java,) = [line for line in session_processes(jobmaster_of(job)) if "java" in line.split()[1]]
    return int(java.split()[0])


@pytest.mark.promise("A2", "A5", "C2", "D11")
def test_the_row_lane_with_value_state_survives_kill_9(tmp_path: Path) -> None:
    with RunningJob(tmp_path, "running_totals") as job:
        os.kill(job.completed(3).slots[1].pid, signal.SIGKILL)
        assert job.wait_until_ended().outcome == "finished"
    table = job.table("totals")
    columns = make(np.arange(60_000, dtype=np.int64))
    want: dict[int, int] = {}
    for key, value in zip(columns["key"].tolist(), (columns["value"] * 2).tolist(), strict=True):
        want[key] = want.get(key, 0) + value
    assert table.num_rows == 60_000
    got: dict[int, int] = {}
    for key, total_ in zip(table.column("key").to_pylist(), table.column("sum").to_pylist(), strict=True):
        got[key] = max(got.get(key, 0), total_)
    assert got == want
    per_key = Counter(zip(table.column("key").to_pylist(), table.column("sum").to_pylist(), strict=True))
    zero = sum(1 for value in (columns["value"] * 2).tolist() if value == 0)
    assert sum(count - 1 for count in per_key.values()) <= zero, "a running total came twice"


@pytest.mark.promise("A7", "C1", "D11")
def test_broadcast_state_beside_keyed_state_survives_kill_9(tmp_path: Path) -> None:
    with RunningJob(tmp_path, "priced") as job:
        os.kill(job.completed(3).slots[0].pid, signal.SIGKILL)
        assert job.wait_until_ended().outcome == "finished"
    rows = list(zip(*(column.to_pylist() for column in job.table("priced").columns), strict=True))
    for subtask in (0, 1):
        own = [(item, known) for item, of, known in rows if of == subtask]
        assert sorted(item for item, _ in own) == list(range(500))
        assert sorted(known for _, known in own) == list(range(1, 501)), "a price was forgotten"
    per_key = Counter(make(np.arange(60_000, dtype=np.int64))["key"].tolist())
    want = Counter((key, number) for key, most in per_key.items() for number in range(1, most + 1))
    assert Counter((key, number) for key, of, number in rows if of < 0) == want


@pytest.mark.promise("A9")
def test_a_slot_that_holds_more_than_its_budget_is_ended_and_said_to_have(tmp_path: Path) -> None:
    with RunningJob(tmp_path, "hoarding", slot_memory_mb=500) as job:
        ended = job.wait_until_ended()
    assert ended.outcome == "failed" and "used more memory than its budget" in ended.reason
    assert "may hold 500: raise --slot-memory" in ended.reason
