"""Measures how long a job stands still when a slot is killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from statistics import median

from benchmarks.report import Result, Say
from benchmarks.weir import WeirJob, fresh_folder
from engine.jobmaster.events import AnyEvent

LIMIT_S = 2.0

_STEPS = {"noticed": "attempt_failed", "restored and deploying": "deploying", "running": "running"}


def recovery(say: Say, kills: int, bare_kills: int, rate: int) -> list[Result]:
    """Measures from kill -9 of a slot until both subtasks of a keyed operator processed a record on restored state."""
    usual, steps = _kill(kills, rate, "default")
    say(f"recovery_s: median {median(usual):.2f} s of {kills} kills, from {min(usual):.2f} to {max(usual):.2f} s")
    bare, _ = _kill(bare_kills, rate, "none")
    say(f"recovery_s: median {median(bare):.2f} s of {bare_kills} kills without the restart strategy's delay")
    on_the_way = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in steps.items())
    note = (
        f"median of {kills} kills at {rate:,} rows/s ({min(usual):.2f} to {max(usual):.2f} s): from kill -9 of a slot "
        "until both subtasks of a keyed operator have processed a record on restored state, the default restart "
        f"strategy's first delay of 1 s included; medians on the way: {on_the_way}. Without that delay "
        f"{median(bare):.2f} s (median of {bare_kills} kills)"
    )
    runs = {"weir": usual, "without_delay": bare, "limit": LIMIT_S}
    ours = median(usual)
    return [Result("recovery_s", None, ours, None, "s", None, note, "≤ 2 s", ours <= LIMIT_S, runs=runs)]


def _kill(kills: int, rate: int, delay: str) -> tuple[list[float], dict[str, float]]:
    """Returns the seconds that each kill cost, and the medians of the steps on the way."""
    folder = fresh_folder("first-records")
    taken: list[float] = []
    steps: list[dict[str, float]] = []
    with WeirJob("benchmarks.jobs:recovery", rate=rate, folder=folder, delay=delay) as job:
        job.wait_for("both subtasks process records", lambda: len(marks(folder)) == 2)
        for kill in range(kills):
            done = len(job.checkpoints())
            job.wait_for("it has checkpoints again", lambda done=done: len(job.checkpoints()) >= done + 2)
            before = marks(folder)
            pid = job.slot_pids()[kill % 2]
            killed_us = time.time_ns() // 1000
            os.kill(pid, signal.SIGKILL)
            job.wait_for("both subtasks go on", lambda before=before: len(marks(folder) - before) == 2)
            first = first_records(folder, before)
            if min(seen for _, seen in first) <= 1:
                raise RuntimeError(f"a subtask lost its state when process {pid} was killed: {first}")
            taken.append((max(at_us for at_us, _ in first) - killed_us) / 1e6)
            steps.append(_steps(job.events(), killed_us / 1000))
    return taken, {name: median(step[name] for step in steps if name in step) for name in _STEPS}


def marks(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def first_records(folder: Path, before: set[str]) -> list[tuple[int, int]]:
    """Returns for each subtask that went on when it did so (µs), and how often it had seen its key by then."""
    return [_read(mark) for mark in marks(folder) - before]


def _read(mark: str) -> tuple[int, int]:
    """Returns when a subtask processed its first record (µs), and how often it had seen its key by then."""
    at_us, _, _, seen = mark.split("-")
    return int(at_us), int(seen)


def _steps(events: list[AnyEvent], killed_ms: float) -> dict[str, float]:
    at = {event.kind: (event.at_ms - killed_ms) / 1000 for event in events if event.at_ms >= killed_ms - 1}
    return {name: at[kind] for name, kind in _STEPS.items() if kind in at}
