"""Goal: a commit gate on real processes holds an epoch, through the death of the JobMaster, until a person releases it.

Topology: two source splits → two Weir tables, on local Spark with two slots; a judge and a SQL condition in the warm
process of the gates. Faults: SIGKILL of the JobMaster while the epoch is held. Checks: what readers see while it is
held, what the commands say and refuse, the verdict in the manifest, and every row of all three tables, once.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from engine.core.paths import JobPaths
from engine.jobmaster.actions import Outcome
from engine.protocol.gate import Decision
from engine.snapshot.epoch_log import EpochLog
from engine.store.opening import open_store
from tests.cli.command import weir
from tests.cluster.harness import RunningJob
from tests.cluster.jobs import make
from tests.cluster.judges import REFUSED_TS

ROWS = 30_000


@pytest.mark.promise("H5", "F1", "F2")
def test_a_held_epoch_waits_for_a_person_also_through_the_death_of_the_jobmaster(tmp_path: Path) -> None:
    with RunningJob(tmp_path, "gated", rows=ROWS) as job:
        first = job.wait_for("the gate holds", lambda s: s.held)
        assert first.held[0].sink == "held" and first.held[0].refused == 1
        assert "held: gate: sink 'held': 1 of" in weir("checkpoints", "gated", store=tmp_path).stdout
        refused = weir("stop", "gated", store=tmp_path)
        assert refused.returncode == 1 and "Decide on it first" in refused.stderr

        assert job.supervisor.master_pid is not None
        os.kill(job.supervisor.master_pid, signal.SIGKILL)
        again = job.wait_for("the next JobMaster holds it, too", lambda s: s.generation > 1 and s.held)
        # The records before it may be in other epochs now. The one that is refused is in none.
        assert again.held[0].epoch == again.epoch + 1 >= first.held[0].epoch
        assert REFUSED_TS not in stamps(job, "held")
        late = weir("gate", "gated", "release", "--checkpoint", "1000", store=tmp_path)
        assert late.returncode == 1 and "checkpoint 1000 is not held" in late.stderr
        assert "1 of " in weir("gate", "gated", store=tmp_path).stdout

        released = weir("gate", "gated", "release", store=tmp_path)
        assert f"epoch {again.held[0].epoch} is published" in released.stdout, released.stderr
        assert job.wait_until_ended().outcome is Outcome.FINISHED
        assert stamps(job, "held") == sorted(make(np.arange(ROWS))["ts"].tolist())
        values = make(np.arange(ROWS))["value"]
        assert sorted(job.table("split").column("value").to_pylist()) == sorted(values[values != 999].tolist())
        assert job.table("split_dead_letter").column("value").to_pylist() == [999] * (ROWS // 1000)
        log = EpochLog(open_store(tmp_path), JobPaths("gated"))
        newest = next(log.epochs())
        assert {one.decision for one in log.read_manifest(newest).verdicts} <= {Decision.PASSED, Decision.DEAD_LETTER}


def stamps(job: RunningJob, table: str) -> list[int]:
    return sorted(job.table(table).column("ts").cast(pa.timestamp("us")).cast(pa.int64()).to_pylist())
