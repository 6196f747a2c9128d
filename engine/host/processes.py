"""Names a process so that another process can say for sure that it has ended: a pid is given again."""

from __future__ import annotations

import os
from pathlib import Path

_STATE, _START = 0, 19
"""The places of these fields in /proc/PID/stat, counted behind the name."""


def identity(pid: int) -> str:
    """Returns the boot, the namespace of pids, the pid and its start time; empty where nobody can tell."""
    fields = _stat(pid)
    where = _here()
    return f"{where}:{pid}:{fields[_START]}" if fields and where else ""


def has_ended(process: str) -> bool:
    """Says whether the process of this identity is known to have ended.

    False if nobody here can know: it belongs to another machine, container or boot.
    """
    where, _, rest = process.rpartition(":")
    where, _, pid = where.rpartition(":")
    if not where or where != _here() or not pid.isdecimal():
        return False
    fields = _stat(int(pid))
    return not fields or fields[_START] != rest or fields[_STATE] in ("Z", "X")


def _here() -> str:
    """Returns what pids belong to: containers of one machine have the same boot, but pids of their own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
