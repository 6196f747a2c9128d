"""Holds what all commands of `weir` share: the arguments for a job and a store, and the consoles."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated, TextIO

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.core.errors import IncompatibleJob, NotRunning
from engine.host.launch import default_name
from engine.observe.client import JobClient, known_jobs
from engine.process.settings import read_settings
from engine.protocol.failures import Raised
from engine.store.opening import address_of

WIDE = 10_000
"""Columns of an output that is not a terminal: a table in a file or a pipe is never cut or broken into lines."""


def _width(stream: TextIO) -> int | None:
    """Returns the width to write at. None: that of the terminal, or of the variable COLUMNS."""
    return None if stream.isatty() or os.environ.get("COLUMNS") else WIDE


console = Console(width=_width(sys.stdout))
errors = Console(stderr=True, soft_wrap=True, width=_width(sys.stderr))

JobName = Annotated[str, typer.Argument(help="name of the job (weir jobs), or its import path", metavar="JOB")]


def _configured(context: typer.Context, option: typer.CallbackParam, value: str) -> str:
    """Returns the configuration file's store if neither the command line nor WEIR_STORE names one; checks its form."""
    source = context.get_parameter_source(str(option.name))
    store = (source and source.name == "DEFAULT" and read_settings().store) or value
    address_of(store)
    return store


Store = Annotated[
    str,
    typer.Option(
        metavar="PLACE",
        help="directory or s3://bucket/prefix for snapshots and tables",
        envvar="WEIR_STORE",
        callback=_configured,
    ),
]


def print_raised(raised: Raised | None) -> None:
    """Prints the traceback of an error of the job's own code, from the author's first frame on."""
    if raised is not None and raised.traceback:
        errors.print(escape(raised.traceback.rstrip()), highlight=False)


def print_differences(error: IncompatibleJob) -> None:
    """Prints why a changed job can't go on, as a table with one row for each difference."""
    errors.print(f"[bold red]error:[/] {escape(error.summary)}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_lines=False)
    table.add_column("operator", style="bold", max_width=28, overflow="fold")
    table.add_column("what changed", ratio=1)
    table.add_column("what to do", ratio=1, min_width=26)  # the longest option is not broken
    for uid, what, fix in error.rows:
        table.add_row(escape(uid), escape(what), escape(fix))
    errors.print(table, soft_wrap=False)


def client_of(store: str, job: str) -> JobClient:
    """Returns the client of a job that is given by its name, or by its import path if it has no --name of its own."""
    client = JobClient(store, default_name(job) if ":" in job else job)
    if ":" in job and client.name not in (known := known_jobs(store)):
        launches = {name: JobClient(store, name).folder.read_launch() for name in known}
        others = [name for name, launch in launches.items() if launch is not None and launch.path == job]
        if others:
            raise NotRunning(
                f"there is no job {client.name!r} in the store {store}; {job} was started as: {', '.join(others)}. "
                "Give that name"
            )
    return client


def trouble_of(client: JobClient) -> str:
    """Says that the JobMaster of a job keeps dying, and why; empty if it does not, or if the job has ended."""
    deaths = client.folder.read_deaths()
    if deaths is None or not deaths.in_a_row or client.ended() is not None:
        return ""
    return deaths.in_words(time.time_ns() // 1_000_000)


def unfinished_upgrade(client: JobClient) -> str:
    """Says that an upgrade of the job is under way or was interrupted, and how it goes on; empty if there is none."""
    upgrade = client.folder.read_upgrade()
    return "" if upgrade is None or upgrade.progress.phase.over else upgrade.in_words(client.name)


def examples(*lines: str) -> str:
    """Returns the examples at the end of a command's --help."""
    return "Examples:\n\n" + "\n\n".join(escape(line) for line in lines)
