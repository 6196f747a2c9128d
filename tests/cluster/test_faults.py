"""Goal: whatever is killed, stopped or broken, the job finishes, and its tables are those of a run without faults.

Topology: three slots on local Spark; a source, a table of the row lane and a table of windows. Faults: drawn by the
seed from the whole list of `tests/chaos/faults.py`. Checks: row by row against numpy, every read of a reader that polls
all the time, and that no process is left. `make chaos` runs the same for as long as you like.
"""

from __future__ import annotations

import pytest

from checks.processes import Role
from tests.chaos.faults import Fault, all_faults, kill, kill_all
from tests.chaos.run import run_one


def quick_faults() -> list[Fault]:
    """Returns the faults whose recovery waits for no long time-out."""
    return [fault for fault in all_faults() if "for too long: JobMaster" not in fault.kind and "JVM" not in fault.kind]


@pytest.mark.promise("A1", "A2", "A3", "D1", "D11")
@pytest.mark.parametrize("seed", [1, 2])
def test_random_faults_lose_and_double_nothing(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_one(seed, print, quick_faults(), seconds=20)
    assert run.wrong == [], capsys.readouterr().out
    assert run.strikes, "no fault struck"


@pytest.mark.promise("D11", "F2")
def test_every_process_can_be_killed_also_all_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_one(7, print, [kill(Role.JVM), kill(Role.DAEMON), kill(Role.SUPERVISOR), kill_all()], seconds=15)
    assert run.wrong == [], capsys.readouterr().out
    assert run.strikes, "no fault struck"
