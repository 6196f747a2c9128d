"""Goal: in a user's own Spark application, a job reads and writes DataFrames exactly once.

Topology: a script with its own session: `from_spark` → Python map of the script → `join_static` → keyed window → Weir
table at an absolute path, read back by the same session. Faults: SIGKILL of a slot on a master without task retries.
Checks: every row counted once, and that the script ends by itself with exit code 0.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.spark.java import prepare_environment

SCRIPT = Path(__file__).with_name("attached_script.py")
ROOT = SCRIPT.parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **prepare_environment(), "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=400, env=environment
    )


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if "RESULT" in line]
    found = json.loads(line.split("RESULT", 1)[1])
    assert isinstance(found, dict)
    return found


@pytest.mark.promise("F1", "A1")
def test_a_script_reads_and_writes_dataframes_exactly_once_although_a_slot_is_killed(tmp_path: Path) -> None:
    done = run("local[2]", str(tmp_path), "kill")
    found = result(done)
    ids = range(60_000)
    want = [
        [key, f"key {key}" if key < 9 else None, 6_000, sum(2 * i for i in ids if i % 10 == key)] for key in range(10)
    ]
    assert found["rows"] == want and found["outcome"] == "finished" and found["restarts"] >= 1
    said, cause = found["failed"]
    assert "job 'refused' failed: operator 'map-1', subtask" in said and "the same error 2 times" in said
    assert f'File "{SCRIPT}", line' in cause and "ValueError: refused" in cause and "engine/" not in cause
    assert "weir: attempt 1.1 of refused failed: " in done.stderr, "each restart is shown as it happens"


def test_too_few_task_slots_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    done = run("local[1]", str(tmp_path))
    assert done.returncode == 1 and "start it with local[3]" in done.stderr
