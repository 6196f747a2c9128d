"""Goal: an operator of each family gives its exact result on Spark, also if a slot dies.

Topology: a source, two filters, their union, a plain process function with a side output, connected by key with a
second source to a function with state and timers of both kinds; four tables; two slots on local Spark.
Faults: SIGKILL of a slot after two checkpoints. Checks: every row of every table; the function's own counter; the
state of a key, asked over HTTP.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.families import KEYS
from tests.cluster.harness import RunningJob

ROWS = 40_000


@pytest.mark.promise("A5", "A6", "A7", "A8", "B3", "B8", "C1")
def test_union_timers_two_inputs_and_side_outputs_are_exact_on_spark(tmp_path: Path) -> None:
    with RunningJob(tmp_path, "families", rows=ROWS) as job:
        os.kill(job.completed(2).slots[0].pid, signal.SIGKILL)
        after = job.wait_for(
            "the second attempt", lambda s: s.attempt == 2 and s.running and s.checkpoints.completed > 3
        )
        assert after.user_counts["seconds"]["seen"] == after.read_rows["numbers"]
        kept = job.client.state("seconds", ["7"])
        assert kept.key == {"key": 7} and kept.states["woken"] == [{"_value": True}], "queryable while it runs"
        job.wait_until_ended()
        tables = {name: job.table(name).to_pylist() for name in ("tens", "seconds", "woken", "named")}
    assert sorted(row["n"] for row in tables["tens"]) == list(range(0, ROWS, 10))
    wanted = Counter((n * 7919 % KEYS, n // 10 // 1000 * 1000 + 1000) for n in range(ROWS))
    assert sorted((row["key"], row["end"], row["rows"]) for row in tables["seconds"]) == sorted(
        (*pair, rows) for pair, rows in wanted.items()
    )
    assert sorted(row["key"] for row in tables["woken"]) == list(range(KEYS))
    assert sorted((row["key"], row["name"]) for row in tables["named"]) == [(n, f"name {n}") for n in range(KEYS)]
