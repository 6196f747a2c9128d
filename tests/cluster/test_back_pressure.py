"""Goal: a stuck sink stops everything before it, memory stays bounded, and the job goes on when it is freed (E1, E2).

Topology: two sources as fast as possible → keyed exchange of single records → two sinks. Fault: the sinks persist
nothing for a while. Checks: rows read, memory and back-pressured time of the slots.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engine.jobmaster.status import JobStatus
from tests.cluster.harness import RunningJob


def memory_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no VmRSS")


@pytest.mark.promise("E1", "E2")
def test_memory_is_bounded_and_back_pressure_shows_and_clears(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    with RunningJob(tmp_path / "store", "stuck", gate=gate) as job:

        def rows(status: JobStatus) -> int:
            return status.vertices[0].rows_in

        def share(before: JobStatus, since_s: float, after: JobStatus) -> float:
            """Returns in which share of the time both subtasks were under back pressure, as far as was heard."""
            passed_ms = (time.monotonic() - since_s) * 1000
            return (after.vertices[0].back_pressured_ms - before.vertices[0].back_pressured_ms) / (2 * passed_ms)

        before = job.wait_for("rows", rows)
        for _ in range(60):  # the buffers on the way fill up, and then nothing moves
            since_s = time.monotonic()
            time.sleep(3)
            status = job.client.status()
            if rows(status) == rows(before) and share(before, since_s, status) > 0.5:
                break
            before = status
        else:
            raise AssertionError(f"it is not stuck: {before}")
        held, pids = rows(status), [slot.pid for slot in status.slots]
        before_mib = [memory_mib(pid) for pid in pids]
        since_s, before = time.monotonic(), status
        time.sleep(5)
        shown = job.wait_for("back pressure", lambda s: share(before, since_s, s) > 0.81)  # a heartbeat may come late
        status = job.client.status()
        after_mib = [memory_mib(pid) for pid in pids]
        assert rows(status) == held, "a stuck job reads on"
        assert max(b - a for a, b in zip(before_mib, after_mib, strict=True)) < 4, (before_mib, after_mib)
        assert rows(shown) == held
        gate.unlink()
        status = job.wait_for("rows again", lambda s: rows(s) > held + 200_000)
        assert status.running and status.restarts == 0
