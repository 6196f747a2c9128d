"""Runs the Spark peer as a process and waits for its result."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.processes import alive, tree
from benchmarks.weir import ROOT, fresh_folder


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kills what is left of the process and its children at the end of the block."""
    seen: set[int] = set()
    try:
        seen |= set(tree(process.pid))
        yield
    finally:
        for pid in seen | set(tree(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
        process.wait()


def run_spark(what: str, patience_s: float = 240, **order: Any) -> dict[str, Any]:
    folder = fresh_folder(f"spark-{what}")
    command = [sys.executable, "-m", "benchmarks.spark_peer", str(folder), json.dumps({"what": what, **order})]
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    with ended(process):
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the Spark peer ({what}) took longer than {patience_s:.0f} s") from None
    result = folder / "result.json"
    if not result.exists():
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise RuntimeError(f"the Spark peer ({what}) gave no result:\n{tail}")
    return json.loads(result.read_text())  # type: ignore[no-any-return]
