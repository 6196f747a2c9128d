"""A gate lets the first process that comes to a chosen call stand there until it is lifted.

In a directory the call is one of a Python process (`standing/sitecustomize.py`). In a bucket it is a request, which a
proxy in front of the server keeps. So a fault meets its moment surely, and nothing in the product knows of it.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.servers.faulty import Fault, FaultyProxy


@dataclass(frozen=True)
class Call:
    """A call whose path matches. `kind` is that of a directory. In a bucket every write is a PUT.

    `after`: a file of this pattern has to exist before, relative to the job's folder; only a directory asks for it.
    `passing`: so many such calls pass before one stands.
    """

    kind: str
    path: str
    after: str = ""
    passing: int = 0


class DirectoryGate:
    def __init__(self, file: Path, job: Path) -> None:
        self.file = file
        self._job = job
        self._standing = file.with_name(f"{file.name}.standing")

    def close(self, call: Call) -> None:
        for old in self.file.parent.glob(f"{self.file.name}.*"):
            old.unlink()
        after = str(self._job / call.after) if call.after else ""
        content = f"{call.kind}\n{call.path}\n{after}\n{call.passing}"
        made = self.file.with_name("making")
        made.write_text(content)
        made.replace(self.file)

    def standing(self) -> int | None:
        """Returns the pid of the process that stands at the call; None: none does."""
        try:
            return int(self._standing.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def lift(self) -> None:
        self.file.unlink(missing_ok=True)


class BucketGate:
    """Nobody knows from outside whose request it is, so `standing` returns 0."""

    def __init__(self, proxy: FaultyProxy) -> None:
        self._lock = threading.Lock()
        self._call: Call | None = None
        self._lifted = threading.Event()
        self._stands = False
        self._passed = 0
        proxy.decide = self._decide

    def close(self, call: Call) -> None:
        with self._lock:
            self._lifted, self._stands, self._passed = threading.Event(), False, 0
            self._call = call

    def standing(self) -> int | None:
        return 0 if self._stands else None

    def lift(self) -> None:
        with self._lock:
            self._call = None
            self._lifted.set()

    def _decide(self, method: str, address: str) -> Fault | None:
        with self._lock:
            call = self._call
            if method != "PUT" or call is None or self._stands or not re.search(call.path, address.partition("?")[0]):
                return None
            self._passed += 1
            if self._passed <= call.passing:
                return None
            self._stands = True
            lifted = self._lifted
        lifted.wait()
        return None


Gate = DirectoryGate | BucketGate


def wait_standing(gate: Gate, patience_s: float) -> int | None:
    until = time.monotonic() + patience_s
    while (pid := gate.standing()) is None and time.monotonic() < until:
        time.sleep(0.02)
    return pid
