"""Runs the Spark peer as a process and waits for its result."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

from benchmarks.processes import alive, tree
from benchmarks.weir import ROOT, fresh_folder


def run_spark(what: str, patience_s: float = 240, **order: Any) -> dict[str, Any]:
    folder = fresh_folder(f"spark-{what}")
    command = [sys.executable, "-m", "benchmarks.spark_peer", str(folder), json.dumps({"what": what, **order})]
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"the Spark peer ({what}) took longer than {patience_s:.0f} s") from None
    finally:
        for pid in tree(process.pid):  # only where it did not end by itself; its JVM goes with it
            with contextlib.suppress(ProcessLookupError):
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
        process.wait()
    result = folder / "result.json"
    if not result.exists():
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise RuntimeError(f"the Spark peer ({what}) gave no result:\n{tail}")
    return json.loads(result.read_text())  # type: ignore[no-any-return]
