"""Goal: on Spark the kinds of windows, triggers, joins, patterns and state write what they write in `engine.testing`.

Topology: one source, and behind it windows with an evictor, triggers built in and of the job's own, a dynamic gap,
counts, the clock, without a key; every built-in aggregate in hopping, session and count windows; every kind of keyed
state, with a time to live; rolling sums; two patterns with a time limit; joins in windows, a co-group and plain
connected streams; two slots on local Spark. Faults: SIGKILL of a slot after two checkpoints.
Checks: every table is that of the same job in one process, which the tests above this folder compare with models; a
window by the clock loses and doubles nothing; a continuous trigger ends with the same result.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from engine.connectors.table import TableSink
from engine.testing import run
from tests.cluster.every_kind import KEYS, LATE_FROM, LATE_STEP, UNORDERED, every_kind
from tests.cluster.harness import RunningJob

ROWS = 12_000


@pytest.mark.promise("A2", "A6", "A7", "A8", "A11", "B4", "B5", "B6", "B7", "B8", "C1")
def test_every_kind_of_window_trigger_join_pattern_and_state_is_exact_on_spark(tmp_path: Path) -> None:
    local = run(every_kind, params={"rows": str(ROWS), "rate": "20000"})
    names = [sink.path for _, sink in local.execution.graph.sinks if isinstance(sink, TableSink)]
    with RunningJob(tmp_path, "every_kind", rows=ROWS, rate=1_500) as job:
        os.kill(job.completed(2).slots[0].pid, signal.SIGKILL)
        job.wait_for("the second attempt", lambda s: s.attempt == 2 and s.running and s.checkpoints.completed > 3)
        job.wait_until_ended()
        tables = {name: job.table(name).to_pylist() for name in names}
    assert len(names) == 21
    for name in names:
        assert tables[name], f"{name} has no rows"
        if name not in UNORDERED:
            assert _sorted(tables[name]) == _sorted(local.rows(name)), name
    assert sorted(row["n"] for row in tables["late"]) == [n for n in range(LATE_FROM, ROWS) if n % LATE_STEP == 0]
    assert [row["brief"] for row in tables["states"] if row["n"] is None] == [-1] * KEYS, "an expired value was read"
    by_clock: dict[int, list[int]] = defaultdict(list)
    for row in sorted(tables["by_clock"], key=lambda row: (row["key"], row["start"])):
        by_clock[row["key"]] += row["ns"]
    for key, ns in by_clock.items():
        assert ns == [n for n in range(ROWS) if n * 7919 % KEYS == key][: len(ns)], "a record is lost or doubled"
    assert _last(tables["continuous"]) == _last(local.rows("continuous"))


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)


def _last(rows: list[dict[str, Any]]) -> dict[int, int]:
    """Returns the best value of each key: a later result of the same window is never worse."""
    best: dict[int, int] = {}
    for row in rows:
        best[row["key"]] = max(row["value"], best.get(row["key"], 0))
    return best
