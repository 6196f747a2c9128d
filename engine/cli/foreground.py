"""Shows on the terminal what `weir run` runs: the live view, and above it what print sinks print."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.live import Live

from engine.cli.liveview import plain_line, render
from engine.connectors.printing import PrintSink
from engine.core.errors import WeirError
from engine.graph.job_graph import JobGraph
from engine.host.run_folder import MasterExit
from engine.observe.client import JobClient
from engine.observe.logs import LogReader

LOOK_S = 0.5
LINE_S = 2.0
WAITING_LINE_S = 15.0
"""The time between two lines if there is no terminal for a live view, while the job runs and while it does not."""


class Printed:
    """Shows the records that a job's print sinks print from now on, in any slot. Leaves out other operators' output."""

    def __init__(self, logs: Path, graph: JobGraph) -> None:
        self._sinks = {uid for uid, sink in graph.sinks if isinstance(sink, PrintSink)}
        self._reader = LogReader(logs)
        self._reader.skip()

    def show(self, console: Console) -> None:
        records = [line.text for line in self._reader.read() if line.uid in self._sinks] if self._sinks else []
        if records:
            console.out("\n".join(records), highlight=False)


def watch(console: Console, client: JobClient, poll: Callable[[], MasterExit | None], printed: Printed) -> MasterExit:
    """Shows the job until it has ended. Returns how it did."""
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    line_at_s, ran = 0.0, False
    with live or nullcontext():
        _starting(console, live)
        while True:
            ended = poll()
            printed.show(console)
            if ended is not None:
                return ended
            try:
                status = client.status()
            except WeirError:
                time.sleep(0.2)
                continue
            if live is not None:
                live.update(render(status), refresh=True)
            elif time.monotonic() >= line_at_s or status.running is not ran:
                ran = status.running
                line_at_s = time.monotonic() + (LINE_S if status.running else WAITING_LINE_S)
                console.print(plain_line(status), highlight=False, soft_wrap=True)
            time.sleep(LOOK_S)


def _starting(console: Console, live: Live | None) -> None:
    if live is not None:
        live.update("starting Spark …", refresh=True)
    else:
        console.print("starting Spark …")
