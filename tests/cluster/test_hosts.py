"""Goal: a job over two hosts survives that these lose sight of each other, and goes on when they see each other again.

Topology: a driver and two hosts, each a network namespace; four slots, two on each host; two source subtasks → keyed
exchange → four window subtasks → Weir table. Faults: nothing passes between the two hosts for a while; connections stay
open, and both still reach the driver. Checks: the job notices in time and restarts; after the cut it goes on, and no
stale connection makes it restart again; results against numpy.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.harness import RunningJob
from tests.cluster.hosts import TwoHosts, inside, why_not
from tests.cluster.standalone import StandaloneCluster
from tests.cluster.test_recovery import expected_windows, got_windows

ROWS = 200_000
SILENCE_S = 5.0


@pytest.mark.promise("F1", "D1")
def test_a_cut_between_two_hosts_is_noticed_and_leaves_no_stale_connection(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(f"NOT TESTED: a cut between two hosts. {reason}")
    spark = tmp_path / "spark"
    spark.mkdir()
    with (
        TwoHosts() as hosts,
        StandaloneCluster(spark, (hosts.driver, hosts.first, hosts.second)) as cluster,
        inside(hosts.driver.namespace),
    ):
        conf = {
            "spark.pyspark.python": cluster.python,
            "spark.executor.memory": "512m",
            "spark.driver.host": hosts.driver.address,
            "spark.driver.bindAddress": hosts.driver.address,
        }
        options = {"spark_master": cluster.url, "conf": conf, "heartbeat_timeout_s": SILENCE_S}
        with RunningJob(tmp_path, "windows", parallelism=4, rows=ROWS, rate=8_000, **options) as job:
            running = job.completed(3)
            assert {slot.address.split("//")[1].split(":")[0] for slot in running.slots} == {
                hosts.first.address,
                hosts.second.address,
            }
            hosts.cut()
            began = time.monotonic()
            job.wait_for("a restart during the cut", lambda s: s.attempt > running.attempt)
            assert time.monotonic() - began < 100, "TCP itself waits for many minutes"
            hosts.heal()
            done = job.client.status().checkpoints.completed
            healed = job.completed(done + 3)
            assert job.wait_until_ended().outcome == "finished"
            assert len(job.client.timeline().restarts) == healed.attempt - 1, "a restart on a stale connection"
            assert got_windows(job.table("sums")) == expected_windows(ROWS)
