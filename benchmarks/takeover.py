"""Measures how long a job stands still when its JobMaster is killed, with and without a standby."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Self

from benchmarks.processes import rss_bytes, tree
from benchmarks.recovery import first_records, marks
from benchmarks.report import Result, Say
from benchmarks.weir import PARALLELISM, fresh_folder
from engine.core.errors import WeirError
from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterExit
from engine.observe.client import JobClient
from engine.observe.history import History
from engine.process.supervisor import POLL_S, Supervisor
from engine.spark import archive

ALONE_LIMIT_S, STANDBY_LIMIT_S = 10.0, 3.0
PATIENCE_S = 240.0

_STEPS = {"claimed": "claimed", "restored and deploying": "deploying", "running": "running"}


def takeover(say: Say, kills: int, rate: int) -> list[Result]:
    """Measures from kill -9 of the JobMaster until both subtasks of a keyed operator processed a record again.

    The archive of Spark's classes is made first, as the supervisor of a job does that has run for a minute.
    """
    archive.make()
    return [
        _measure(say, "takeover_s", kills, rate, ALONE_LIMIT_S, standby=False),
        _measure(say, "takeover_standby_s", kills, rate, STANDBY_LIMIT_S, standby=True),
    ]


def _measure(say: Say, bench: str, kills: int, rate: int, limit_s: float, *, standby: bool) -> Result:
    taken, steps, standby_mb = _kill(kills, rate, standby)
    ours = median(taken)
    say(f"{bench}: median {ours:.2f} s of {kills} kills, from {min(taken):.2f} to {max(taken):.2f} s")
    on_the_way = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in steps.items())
    held = f"; the standby's processes held {standby_mb:.0f} MB" if standby else ""
    note = (
        f"median of {kills} kills at {rate:,} rows/s ({min(taken):.2f} to {max(taken):.2f} s), "
        f"{'with' if standby else 'without'} a standby: from kill -9 of the JobMaster until both subtasks of a keyed "
        f"operator have processed a record on restored state; medians on the way: {on_the_way}{held}"
    )
    target = f"≤ {limit_s:.0f} s"
    return Result(bench, None, ours, None, "s", None, note, target, ours <= limit_s, runs={"weir": taken})


def _kill(kills: int, rate: int, standby: bool) -> tuple[list[float], dict[str, float], float]:
    """Returns the seconds that each kill cost, the medians of the steps on the way, and the memory of a standby."""
    folder = fresh_folder("first-records")
    taken: list[float] = []
    steps: list[dict[str, float]] = []
    megabytes: list[float] = []
    with SupervisedJob("benchmarks.jobs:recovery", standby, rate=rate, folder=folder) as job:
        for _ in range(kills):
            epoch = job.epoch()
            job.wait_for("it has epochs", lambda epoch=epoch: job.epoch() >= epoch + 2)
            if standby:
                job.wait_for("its standby is ready", job.standby_is_ready)
                assert job.supervisor.standby_pid is not None
                megabytes.append(sum(_rss(pid) for pid in tree(job.supervisor.standby_pid)) / 1e6)
            before, pid = marks(folder), job.supervisor.master_pid
            assert pid is not None
            killed_us = time.time_ns() // 1000
            os.kill(pid, signal.SIGKILL)
            job.wait_for("both subtasks go on", lambda before=before: len(marks(folder) - before) == PARALLELISM)
            first = first_records(folder, before)
            if min(seen for _, seen in first) <= 1:
                raise RuntimeError(f"a subtask lost its state when the JobMaster {pid} was killed: {first}")
            taken.append((max(at_us for at_us, _ in first) - killed_us) / 1e6)
            steps.append(job.steps(killed_us / 1000))
    on_the_way = {name: median(step[name] for step in steps if name in step) for name in _STEPS}
    return taken, on_the_way, median(megabytes) if megabytes else 0.0


def _rss(pid: int) -> int:
    try:
        return rss_bytes(pid)
    except OSError:  # it has just ended
        return 0


class SupervisedJob:
    """Runs a job under a real supervisor, which a thread polls as `weir submit` does."""

    def __init__(self, path: str, standby: bool, **params: object) -> None:
        self.name = path.partition(":")[2]
        self._launch = MasterLaunch(
            path=path,
            name=self.name,
            params={name: str(value) for name, value in params.items()},
            parallelism=PARALLELISM,
            store=str(fresh_folder(f"weir-{self.name}")),
            max_slots=PARALLELISM,
            standby=standby,
        )
        self._client = JobClient(self._launch.store, self.name)
        self.supervisor = Supervisor(self._launch, lambda line: None)
        self._ended: MasterExit | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="supervisor", daemon=True)

    def __enter__(self) -> Self:
        self.supervisor.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.supervisor.stop()

    def _poll(self) -> None:
        while self._ended is None and not self._over.wait(POLL_S):
            self._ended = self.supervisor.poll()

    def epoch(self) -> int:
        with contextlib.suppress(WeirError):
            return self._client.status().epoch
        return 0

    def standby_is_ready(self) -> bool:
        sign = self._client.folder.read_supervisor()
        return sign is not None and sign.standby is not None and sign.standby.ready

    def steps(self, killed_ms: float) -> dict[str, float]:
        """Returns when each step of the takeover was noted, in seconds since the kill."""
        events = History(Path(self._launch.store), self.name).events()
        at = {event.kind: (event.at_ms - killed_ms) / 1000 for event in events if event.at_ms >= killed_ms}
        return {name: at[kind] for name, kind in _STEPS.items() if kind in at}

    def wait_for(self, what: str, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            if self._ended is not None:
                raise RuntimeError(f"the job {self.name} ended before {what}: {self._ended.reason}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the job {self.name}: waited {PATIENCE_S:.0f} s until {what}")
            time.sleep(0.05)
