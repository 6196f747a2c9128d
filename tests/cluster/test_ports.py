"""Goal: the ports of scripts of PyFlink and of Spark compute on Spark, too, what their originals have computed.

Topology: a script with its own session runs the eleven ports one after the other, on two subtasks each. Checks: the
rows of all tables are those that the originals printed when `python -m tests.ports.record` ran them last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.spark.java import prepare_environment
from tests.ports.pairs import NAMES, ROOT, as_lines, recorded

SCRIPT = Path(__file__).with_name("ports_script.py")


@pytest.mark.promise("A1", "A6", "A7", "A8", "B4", "B7", "B8", "C1")
def test_the_ports_compute_on_spark_what_the_originals_have_printed(tmp_path: Path) -> None:
    environment = {**os.environ, **prepare_environment(), "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    found = json.loads(line.removeprefix("RESULT"))
    assert sorted(found) == sorted(NAMES)
    for name in NAMES:
        assert found[name] == as_lines(recorded(name).read_text()), name
