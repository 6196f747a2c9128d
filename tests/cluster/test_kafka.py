"""Goal: a job on Spark that reads one topic and writes another loses and doubles nothing.

Topology: a real broker; four partitions → two sources → rebalance → two sinks → three partitions.
Faults: SIGKILL of a slot, of the JobMaster, and of the broker, which comes back. Checks: a `read_committed` reader
finds each number once.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.harness import PATIENCE_S, RunningJob
from tests.cluster.test_recovery import jobmaster_of
from tests.connectors import kafka_topics as topics
from tests.servers.kafka import Broker, running

ROWS = 4_000


def put(broker: Broker, first: int, last: int) -> None:
    for partition in range(4):
        topics.put(broker, "read", [b'{"n": %d}' % n for n in range(first + partition, last, 4)], partition)


def seen(broker: Broker) -> list[int]:
    return sorted(json.loads(value)["n"] for value in topics.values(broker, "write", 3))


@pytest.mark.promise("G2", "G3", "D11", "H8")
def test_killed_slots_jobmasters_and_brokers_lose_and_double_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "kafka") as broker:
        topics.create(broker, "read", 4)
        topics.create(broker, "write", 3)
        put(broker, 0, ROWS)
        with RunningJob(tmp_path / "store", "kafka", servers=broker.address, read="read", write="write") as job:
            status = job.completed(2)
            put(broker, ROWS, 2 * ROWS)
            os.kill(status.slots[0].pid, signal.SIGKILL)
            job.wait_for("the second attempt", lambda s: s.attempt == 2 and s.running)
            put(broker, 2 * ROWS, 3 * ROWS)
            os.kill(jobmaster_of(job), signal.SIGKILL)
            status = job.wait_for("the second generation", lambda s: s.generation == 2 and s.running)
            broker.kill()
            broker.start()
            put(broker, 3 * ROWS, 4 * ROWS)
            until = time.monotonic() + PATIENCE_S
            while len(found := seen(broker)) < 4 * ROWS and time.monotonic() < until:
                epoch = job.client.status().epoch
                job.wait_for("the next epoch", lambda s, epoch=epoch: s.epoch > epoch and s.running)
            job.client.cancel()
            job.wait_until_ended()
        assert found == list(range(4 * ROWS))
        assert seen(broker) == found
