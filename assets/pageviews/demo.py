"""`make demo`: kills a worker of the page-view job and counts the lost and doubled rows, under three guarantees."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from assets.pageviews.demo_jobs import EVENT_RATE
from assets.pageviews.truth import Verdict, compare, counted, expected
from engine.cli.liveview import plain_line, render
from engine.connectors.table import read_table
from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.host.launch import MasterLaunch
from engine.jobmaster.actions import Outcome
from engine.jobmaster.status import JobStatus
from engine.observe.client import JobClient
from engine.process.supervisor import Supervisor
from engine.store.directory import DirectoryStore

STORE = Path(".weir/demo")
ROWS = 1_500_000
RATE = 150_000
WINDOW_MS = 10_000
KILL_AFTER_S = 4.5
GIVE_UP_S = 90

console = Console()


@dataclass(frozen=True)
class Act:
    name: str
    title: str
    story: str


ACTS = (
    Act("exactly_once", "exactly once", "aligned barriers, checkpoints every second"),
    Act("at_least_once", "at least once, one slow source", "no channel waits for the slow source's barrier"),
    Act("no_checkpoints", "no checkpoints", "a live feed, and no snapshot to restore"),
)


@dataclass(frozen=True)
class Played:
    act: Act
    verdict: Verdict
    recovery_s: float
    checkpoints: int


def main() -> None:
    started = time.monotonic()
    shutil.rmtree(STORE, ignore_errors=True)
    want = expected(ROWS, EVENT_RATE, WINDOW_MS)
    played = []
    for number, act in enumerate(ACTS, 1):
        console.rule(f"{number} of {len(ACTS)}  [bold]{act.title}[/]: {act.story}", align="left")
        played.append(_play(act, want))
    console.rule(align="left")
    console.print(_results(played))
    console.print(f"{time.monotonic() - started:.0f} s in all. The tables are in {STORE}.", highlight=False)
    exact = played[0].verdict
    if exact.lost or exact.duplicated:
        console.print("[bold red]The exactly-once job lost or doubled rows: this is a bug in Weir.[/]")
        sys.exit(1)
    console.print(
        "Next: [bold].venv/bin/weir run assets.pageviews.job:job[/], and in a second terminal kill -9 one of the pids "
        "that [bold].venv/bin/weir status pageviews --json[/] names.",
        highlight=False,
        soft_wrap=True,
    )


def _play(act: Act, want: dict[tuple[str, int], int]) -> Played:
    """Runs one job to its end; on the way, kills one of its two workers with SIGKILL."""
    params = {"rows": str(ROWS), "rate": str(RATE), "feed": str(STORE.absolute() / "feed")}
    launch = MasterLaunch(
        path=f"assets.pageviews.demo_jobs:{act.name}",
        name=act.name,
        params=params,
        parallelism=2,
        store=str(STORE.absolute()),
        max_slots=2,
    )
    supervisor = Supervisor(launch, console.print)
    client = JobClient(launch.store, launch.name)
    supervisor.start()
    try:
        recovery_s, checkpoints = _watch_and_kill(client, supervisor)
    finally:
        supervisor.stop()
    table = read_table(DirectoryStore(launch.store), JobPaths(act.name).table("pv"))
    return Played(act, compare(want, counted(table)), recovery_s, checkpoints)


def _watch_and_kill(client: JobClient, supervisor: Supervisor) -> tuple[float, int]:
    note = ""
    running_since = killed_at = recovery_s = 0.0
    checkpoints, reading_at = 0, 0.0
    deadline = time.monotonic() + GIVE_UP_S
    with _Screen() as screen:
        while True:
            now = time.monotonic()
            ended = supervisor.poll()
            if ended is not None:
                if ended.outcome is not Outcome.FINISHED:
                    console.print(f"[bold red]the job {ended.outcome}: {ended.reason}[/]")
                    sys.exit(1)
                return recovery_s, checkpoints
            if now > deadline:
                console.print(f"[bold red]the job is not finished after {GIVE_UP_S} s; its files are in {STORE}[/]")
                sys.exit(1)
            try:
                status = client.status()
            except WeirError:
                time.sleep(0.1)
                continue
            checkpoints = max(checkpoints, status.checkpoints.completed)
            rows = sum(vertex.rows_in for vertex in status.vertices)
            if status.running and rows and not running_since:
                running_since = now
            if running_since and not killed_at and now - running_since > KILL_AFTER_S:
                victim = status.slots[0].pid
                os.kill(victim, signal.SIGKILL)
                killed_at = now
                note = f"kill -9 {victim}"
            if killed_at and not recovery_s and status.attempt > 1 and status.running and rows:
                recovery_s = now - killed_at
                note += f"   records flow again after {recovery_s:.1f} s"
            if now - reading_at > 0.5:
                reading_at = now
                screen.show(status, note)
            time.sleep(0.03)


class _Screen:
    """Shows the live view on a terminal, and one line every two seconds elsewhere."""

    def __init__(self) -> None:
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._last_s = 0.0
        self._note = ""

    def __enter__(self) -> _Screen:
        if self._live:
            self._live.__enter__()
            self._live.update("starting Spark …", refresh=True)
        else:
            console.print("starting Spark …")
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)

    def show(self, status: JobStatus, note: str) -> None:
        if self._live:
            self._live.update(render(status, note), refresh=True)
            return
        if note != self._note:
            self._note = note
            console.print(note, style="bold magenta", highlight=False)
        if time.monotonic() - self._last_s > 2:
            self._last_s = time.monotonic()
            console.print(plain_line(status), highlight=False, soft_wrap=True)


def _results(played: list[Played]) -> Table:
    table = Table(title="in each job one worker was killed with SIGKILL", title_justify="left")
    table.add_column("")
    for one in played:
        table.add_column(one.act.title, justify="right")
    rows = [
        ("rows in", [f"{one.verdict.rows:,}" for one in played]),
        ("rows counted", [f"{one.verdict.counted:,}" for one in played]),
        ("lost", [_judged(one.verdict.lost) for one in played]),
        ("duplicated", [_judged(one.verdict.duplicated) for one in played]),
        ("recovery", [f"{one.recovery_s:.1f} s" for one in played]),
        ("checkpoints", [str(one.checkpoints) for one in played]),
    ]
    for name, values in rows:
        table.add_row(name, *values)
    return table


def _judged(value: int) -> str:
    return f"[bold red]{value:,}[/]" if value else "[bold green]0[/]"


if __name__ == "__main__":
    main()
