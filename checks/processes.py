"""Ensures that a drill leaves no process behind: JobMasters are session leaders, so /proc shows their processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path


def session_processes(session: int) -> list[int]:
    """Returns the processes whose session leader is or was this one, without zombies; none if there is no /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # the process has ended meanwhile
        if int(fields[3]) == session and fields[0] != "Z" and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def end_sessions(sessions: set[int], patience_s: float = 20.0) -> list[int]:
    """Waits until the sessions are empty; kills the processes that stay longer, and returns them."""
    deadline = time.monotonic() + patience_s
    while left := [pid for session in sessions for pid in session_processes(session)]:
        if time.monotonic() > deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return left
        time.sleep(0.1)
    return []
