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

        status = job.wait_for("rows", rows)
        held = -1
        while rows(status) != held:  # the buffers on the way fill up, and then nothing moves
            held = rows(status)
            time.sleep(2)
            status = job.client.status()
        pids = [slot.pid for slot in status.slots]
        before_mib = [memory_mib(pid) for pid in pids]
        before_ms = status.vertices[0].back_pressured_ms
        time.sleep(5)
        status = job.client.status()
        after_mib = [memory_mib(pid) for pid in pids]
        assert rows(status) == held, "a stuck job reads on"
        assert max(b - a for a, b in zip(before_mib, after_mib, strict=True)) < 4, (before_mib, after_mib)
        assert status.vertices[0].back_pressured_ms - before_ms > 0.9 * 2 * 4500, "it does not show"
        gate.unlink()
        status = job.wait_for("rows again", lambda s: rows(s) > held + 200_000)
        assert status.running and status.restarts == 0
