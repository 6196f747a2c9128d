"""Goal: a running job gets another parallelism and back, by hand or by its load, proves that it kept its state, and its
rows stay exact.

Topology: two source splits → map → keyed exchange → process with keyed state → Weir table; two slots on local Spark,
then three, then two, then one. Faults: SIGKILL of a slot while the job switches, SIGKILL of the JobMaster after a
rescale. Checks: the digests of all keyed state, the number of Spark tasks, the parallelism of the replaced JobMaster,
and every row against numpy.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import psutil
import pytest

from engine.core.errors import WeirError
from engine.observe.rescales import RescaleRecord, RescaleState
from engine.protocol.autoscale import Bounds
from engine.protocol.scaling import Scaling
from orchestration.resources import WeirStore
from orchestration.spec import StreamSpec
from tests.cli.command import weir
from tests.cluster.harness import RunningJob
from tests.cluster.jobs import KEYS, make
from tests.orchestration.jobs import definitions

ROWS = 240_000


def rescaled(job: RunningJob, parallelism: int) -> RescaleRecord:
    started = job.client.rescale(parallelism)
    assert started is not None
    done = job.client.wait_for_rescale(started, 180)
    assert done.state is RescaleState.COMPLETED, done.reason
    assert done.digest_before == done.digest_after and done.rows == KEYS
    return done


def check_totals(table: Any) -> None:
    """Each key's records came once, in an order that its sum agrees with."""
    columns = make(np.arange(ROWS, dtype=np.int64))
    assert table.num_rows == ROWS
    keys, values, sums = (table.column(name).to_numpy() for name in ("key", "value", "sum"))
    for key in range(KEYS):
        mine = keys == key
        order = np.argsort(sums[mine], kind="stable")
        assert np.array_equal(np.cumsum(values[mine][order]), sums[mine][order]), f"key {key}"
        assert np.array_equal(np.sort(values[mine]), np.sort(2 * columns["value"][columns["key"] == key]))


@pytest.mark.promise("D7", "F1", "H6")
def test_a_job_is_rescaled_up_and_down_while_a_slot_dies(tmp_path: Path) -> None:
    with RunningJob(tmp_path, "running_totals", rows=ROWS, rate=8_000) as job:
        job.completed(2)
        up = rescaled(job, 3)
        assert up.after["totals"] == 3 and up.after["numbers"] == 2, "the source has two splits"
        status = job.wait_for("three slots", lambda s: s.running and len(s.slots) == 3)
        assert status.restarts == 0, "a rescale is no restart"

        shown = weir("rescale", "running_totals", "--operator", "total=2", store=tmp_path)
        assert shown.returncode == 1 and "did you mean 'totals'?" in shown.stderr
        shown = weir("rescale", "running_totals", "--parallelism", "9", store=tmp_path)
        assert shown.returncode == 1 and "Spark is given 4" in shown.stderr
        job.wait_for("the job goes on", lambda s: s.running and s.parallelism == 3)

        started = job.client.rescale(2)
        assert started is not None
        victim = status.slots[0].pid
        job.wait_for("the switch", lambda s: s.rescales.under_way == RescaleState.SWITCHING or not s.rescales.under_way)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        down = job.client.wait_for_rescale(started, 180)
        if down.state is RescaleState.FAILED:  # the slot died before the state was proved: the job is as it was
            assert "the attempt failed meanwhile" in down.reason
            job.wait_for("the job goes on", lambda s: s.running and s.parallelism == 3 and len(s.slots) == 3)
            down = rescaled(job, 2)
        assert down.state is RescaleState.COMPLETED and down.digest_before == down.digest_after
        job.wait_for("two slots", lambda s: s.running and len(s.slots) == 2 and s.slots_needed == 2)

        shown = weir("rescale", "running_totals", "--parallelism", "1", store=tmp_path)
        assert shown.returncode == 0 and "is rescaled" in shown.stdout and "the same" in shown.stdout, shown.stderr
        job.wait_for("one slot", lambda s: s.running and len(s.slots) == 1)
        _wait_for_workers(job, 1)
        assert "completed" in weir("rescales", "running_totals", store=tmp_path).stdout
        assert job.wait_until_ended().outcome == "finished"
    check_totals(job.table("totals"))


class Autoscaler:
    """The sensor and the job of Dagster that rescale a stream, as a daemon would run them."""

    def __init__(self, store: Path, job: str, bounds: Bounds) -> None:
        path = f"tests.cluster.jobs:{job}"
        self._spec = StreamSpec(job=job, path=path, description="", owners=("team:tests",), autoscale=bounds)
        self._definitions = definitions(store, self._spec)
        self._weir = {"weir": WeirStore(path=str(store))}

    def rescales_to(self, parallelism: int, instance: dg.DagsterInstance) -> dict[str, Any]:
        """Looks at the job until a rescale is asked for, which must be this one. Returns what was observed of it."""
        repository = self._definitions.get_repository_def()
        sensor = repository.get_sensor_def(f"{self._spec.job}_autoscale")
        skipped, deadline = "", time.monotonic() + 120
        while time.monotonic() < deadline:
            with dg.build_sensor_context(instance, repository_def=repository, resources=self._weir) as context:
                tick = sensor.evaluate_tick(context)
            if tick.run_requests:
                break
            skipped = tick.skip_message or ""
            time.sleep(0.3)
        assert tick.run_requests, f"no rescale is asked for: {skipped}"
        (request,) = tick.run_requests
        assert request.run_config["ops"][f"rescale_{self._spec.job}"]["config"]["parallelism"] == parallelism
        rescale = self._definitions.resolve_job_def(f"{self._spec.job}_rescale")
        assert rescale.execute_in_process(instance=instance, run_config=request.run_config).success
        (record,) = instance.fetch_observations(self._spec.stream_key, limit=1).records
        assert record.asset_observation is not None
        return {name: value.value for name, value in record.asset_observation.metadata.items()}


@pytest.mark.promise("D7", "F2", "F5")
def test_a_loaded_job_is_autoscaled_up_and_down_and_a_replaced_jobmaster_begins_at_the_new_parallelism(
    tmp_path: Path,
) -> None:
    """The load is a function that sleeps, so that the shares are the same on every machine."""
    gate, store = tmp_path / "gate", tmp_path / "store"
    gate.touch()
    with (
        RunningJob(store, "loaded", parallelism=1, gate=gate) as job,
        dg.DagsterInstance.local_temp(str(tmp_path)) as instance,
    ):
        job.completed(1)
        autoscaler = Autoscaler(store, "loaded", Bounds(least=1, most=2, cool_down_ms=1_000))
        up = autoscaler.rescales_to(2, instance)
        assert up["slots"] == 2 and up["parallelism"]["totals"] == 2
        job.wait_for("two loaded slots", lambda s: s.running and len(s.slots) == 2 and s.vertices[1].busy > 0.8)
        gate.unlink()
        down = autoscaler.rescales_to(1, instance)
        assert down["slots"] == 1 and [one.state for one in job.client.rescales()] == [RescaleState.COMPLETED] * 2
        assert job.client.status().restarts == 0

        started = job.client.rescale(None, {"totals": 3})
        assert started is not None
        done = job.client.wait_for_rescale(started, 180)
        assert done.state is RescaleState.COMPLETED and done.digest_before == done.digest_after and done.rows == KEYS
        assert job.supervisor.master_pid is not None
        os.kill(job.supervisor.master_pid, signal.SIGKILL)
        status = job.wait_for("generation 2", lambda s: s.generation == 2 and s.running)
        assert {vertex.id: vertex.parallelism for vertex in status.vertices} == {"numbers": 1, "totals": 3}
        launch = job.client.folder.read_launch()
        assert launch is not None and launch.scaling == Scaling(1, {"totals": 3})


def _wait_for_workers(job: RunningJob, count: int) -> None:
    """Waits until Spark runs this many Python workers: the tasks of released slots have ended."""
    deadline = time.monotonic() + 120
    found: list[psutil.Process] = []
    while time.monotonic() < deadline:
        pids = {slot.pid for slot in job.client.status().slots}
        daemons = [psutil.Process(pid).parent() for pid in pids]
        found = [child for daemon in daemons if daemon is not None for child in daemon.children()]
        if len(found) == count:
            return
        time.sleep(0.2)
    raise AssertionError(f"{len(found)} workers are left: {found}")


@pytest.mark.promise("D7")
def test_slots_that_do_not_come_leave_the_job_as_it_was(tmp_path: Path) -> None:
    """A cluster of three cores has room for a third slot, and none for a fourth."""
    with RunningJob(tmp_path, "endless", spark_master="local-cluster[1,3,1024]", slots_timeout_s=30) as job:
        job.completed(1)
        started = job.client.rescale(4)
        assert started is not None
        failed = job.client.wait_for_rescale(started, 180)
        assert failed.state is RescaleState.FAILED and "only 3 of 4 slots" in failed.reason
        status = job.wait_for("two slots again", lambda s: s.running and len(s.slots) == 2)
        assert status.attempt == 1 and status.slots_needed == 2 and status.restarts == 0
        job.completed(status.checkpoints.completed + 2)
        started = job.client.rescale(3)
        assert started is not None
        assert job.client.wait_for_rescale(started, 180).state is RescaleState.COMPLETED, "the cores are free again"
        with pytest.raises(WeirError, match="has no operator"):
            job.client.rescale(None, {"nobody": 3})
