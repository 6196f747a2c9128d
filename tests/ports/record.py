"""Runs the original scripts, and compares what they print with what is recorded: `python -m tests.ports.record`.

`--write` records it instead. Names of scripts choose some of them. PyFlink is in a virtualenv of its own, which the
first run makes outside of the checkout (600 MB); the scripts for Spark run with the pyspark of this one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.environments import flink_python
from engine.spark.java import prepare_environment
from tests.ports.pairs import NAMES, ORIGINALS, as_lines, original, recorded

PATIENCE_S = 900
SPARK = "--conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false pyspark-shell"


def printed(name: str) -> str:
    """Runs an original and returns what it prints."""
    python = flink_python(print) if name in ORIGINALS["pyflink"] else Path(sys.executable)
    environment = {
        **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        **prepare_environment(),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",  # Flink starts the `python` that it finds there
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_SUBMIT_ARGS": SPARK,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        ran = subprocess.run(
            [python, original(name)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=PATIENCE_S,
        )
        if ran.returncode:
            errors.seek(0)
            raise SystemExit(f"{name} failed:\n" + "".join(errors.readlines()[-20:]))
    return ran.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts to run (default: all)")
    parser.add_argument("--write", action="store_true", help="record what they print")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    differing = [name for name in options.names or NAMES if not _check(name, options.write)]
    raise SystemExit(f"these print something else: {', '.join(differing)}" if differing else 0)


def _check(name: str, write: bool) -> bool:
    lines = as_lines(printed(name))
    if not lines:
        raise SystemExit(f"{name} printed no rows")
    if write:
        recorded(name).write_text("\n".join(lines) + "\n")
    same = lines == as_lines(recorded(name).read_text())
    print(f"{name}: {len(lines)} rows {'recorded' if write else 'as recorded' if same else 'unlike what is recorded'}")
    return same


if __name__ == "__main__":
    main()
