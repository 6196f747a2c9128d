"""Reads /proc: children, CPU time and resident memory of processes, and the CPU time that other processes take."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _stat(pid: int | str) -> list[str] | None:
    """Returns the fields behind the command's name: state, parent, …"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def alive(pid: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[0] != "Z"


def tree(root: int) -> list[int]:
    """Returns the process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(entry.name)) is not None:
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """Returns the user and system time so far of the living processes and of their children that have ended."""
    stats = [stat for pid in pids if (stat := _stat(pid)) is not None]
    return sum(int(ticks) for stat in stats for ticks in stat[11:15]) / _TICKS_PER_S


class Neighbours:
    """Measures how many cores other processes use while the block runs: they make a figure rough."""

    def __init__(self, every_s: float = 2.0) -> None:
        self.cores = 0.0
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="neighbours", daemon=True)

    def __enter__(self) -> Self:
        self._since, self._used_s = time.monotonic(), 0.0
        self._seen = self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.cores = self._used_s / (time.monotonic() - self._since)

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            now = self._look()
            self._used_s += sum(max(0, now[pid] - self._seen[pid]) for pid in now.keys() & self._seen.keys())
            self._seen = now

    def _look(self) -> dict[int, float]:
        ours = set(tree(os.getpid()))
        others = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        stats = {pid: stat for pid in others if pid not in ours and (stat := _stat(pid)) is not None}
        return {pid: (int(stat[11]) + int(stat[12])) / _TICKS_PER_S for pid, stat in stats.items()}


def rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
