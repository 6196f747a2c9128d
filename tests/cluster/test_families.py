"""Goal: an operator of each family gives its exact result on Spark, also if a slot dies.

Topology: a source, two filters, their union, a plain process function with a side output, connected by key with a
second source to a function with state and timers of both kinds; an interval join; session windows, alone, in a join and
in a co-group; sliding windows that share panes; watermarks of a generator of the job's own; a function that refuses
records, with dead letters; eleven tables; two slots on local Spark. Faults: SIGKILL of a slot after two checkpoints.
Checks: every row of every table; the function's own counter; the watermark while the job runs; the state of a key,
asked over HTTP.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.cluster.families import BAD_STEP, BEHIND_MS, EVERY_MS, GAP_MS, HOP_MS, KEYS, NEAR_MS, NEAR_STEPS, PERIOD_MS
from tests.cluster.harness import RunningJob

ROWS = 40_000


@pytest.mark.promise("A5", "A6", "A7", "A8", "A12", "B3", "B4", "B5", "B8", "C1")
def test_union_timers_two_inputs_side_outputs_joins_and_windows_are_exact_on_spark(tmp_path: Path) -> None:
    with RunningJob(tmp_path, "families", rows=ROWS, rate=2_500) as job:
        moved = job.wait_for("event time moves", lambda s: s.sinks["hops out"].watermark_ms is not None)
        watermark_ms = moved.sinks["hops out"].watermark_ms
        assert watermark_ms is not None and -BEHIND_MS <= watermark_ms <= ROWS // 10 - 1 - BEHIND_MS
        os.kill(job.completed(2).slots[0].pid, signal.SIGKILL)
        after = job.wait_for(
            "the second attempt", lambda s: s.attempt == 2 and s.running and s.checkpoints.completed > 3
        )
        assert after.user_counts["seconds"]["seen"] == after.read_rows["numbers"]
        kept = job.client.state("seconds", ["7"])
        assert kept.key == {"key": 7} and kept.states["woken"] == [{"_value": True}], "queryable while it runs"
        job.wait_until_ended()
        assert 0 < after.failed_rows["refusing"] <= ROWS // BAD_STEP
        names = ("accepted", "refused", "tens", "seconds", "woken", "named", "near", "sessions", "hops", "met", "sizes")
        tables = {name: job.table(name).to_pylist() for name in names}
    assert sorted(row["n"] for row in tables["accepted"]) == [n for n in range(0, ROWS, 100) if n % BAD_STEP]
    letters = sorted((json.loads(letter["record"])["n"], letter["reason"]) for letter in tables["refused"])
    assert letters == [(n, f"ValueError: {n} is refused") for n in range(0, ROWS, BAD_STEP)]
    assert sorted(row["n"] for row in tables["tens"]) == list(range(0, ROWS, 10))
    wanted = Counter((n * 7919 % KEYS, n // 10 // 1000 * 1000 + 1000) for n in range(ROWS))
    assert sorted((row["key"], row["end"], row["rows"]) for row in tables["seconds"]) == sorted(
        (*pair, rows) for pair, rows in wanted.items()
    )
    active: dict[tuple[int, int], list[int]] = defaultdict(list)
    for n in range(ROWS):
        key, at = n * 7919 % KEYS, n // 10
        if (at // PERIOD_MS + key) % 2 == 0:
            active[key, at // PERIOD_MS].append(at)
    assert sorted((row["key"], row["start"], row["end"], row["rows"]) for row in tables["sessions"]) == sorted(
        (key, min(times), max(times) + GAP_MS, len(times)) for (key, _), times in active.items()
    )
    assert sorted(row["key"] for row in tables["woken"]) == list(range(KEYS))
    assert sorted((row["key"], row["name"]) for row in tables["named"]) == [(n, f"name {n}") for n in range(KEYS)]
    ours, theirs = (range(0, ROWS, step) for step in NEAR_STEPS)
    wanted_pairs = {(n, m) for n in ours for m in theirs if n % KEYS == m % KEYS and abs(n // 10 - m // 10) <= NEAR_MS}
    pairs = [(row["n"], row["n_right"]) for row in tables["near"]]
    assert len(pairs) == len(set(pairs)) > 1000 and set(pairs) == wanted_pairs
    hops = Counter(
        (n * 7919 % KEYS, start)
        for n in range(ROWS)
        for start in range(n // 10 // EVERY_MS * EVERY_MS, n // 10 - HOP_MS, -EVERY_MS)
    )
    assert sorted((row["key"], row["start"], row["end"], row["rows"]) for row in tables["hops"]) == sorted(
        (key, start, start + HOP_MS, rows) for (key, start), rows in hops.items()
    )
    sessions: list[dict[tuple[int, int], list[int]]] = []
    for step in NEAR_STEPS:
        sessions.append(defaultdict(list))
        for n in range(0, ROWS, step):
            if (n // 10 // PERIOD_MS + n * 7919 % KEYS) % 2 == 0:
                sessions[-1][n * 7919 % KEYS, n // 10 // PERIOD_MS].append(n)
    first, second = sessions
    met = [(row["n"], row["n_right"]) for row in tables["met"]]
    assert sorted(met) == sorted((n, m) for session in first for n in first[session] for m in second[session])
    assert len(met) > 1000
    assert sorted((row["key"], row["start"], row["ours"], row["theirs"]) for row in tables["sizes"]) == sorted(
        (session[0], min(first[session] + second[session]) // 10, len(first[session]), len(second[session]))
        for session in {*first, *second}
    )
