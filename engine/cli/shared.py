"""Holds what all commands of `weir` share: the arguments for a job and a store, and the consoles."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.core.errors import IncompatibleJob
from engine.process.loading import default_name
from engine.process.settings import read_settings
from engine.protocol.failures import Raised

console = Console()
errors = Console(stderr=True, soft_wrap=True)

JobName = Annotated[str, typer.Argument(help="name of the job (weir jobs), or its import path", metavar="JOB")]


def _configured(context: typer.Context, option: typer.CallbackParam, value: str) -> str:
    """Returns the configuration file's store if neither the command line nor WEIR_STORE names one."""
    source = context.get_parameter_source(str(option.name))
    return (source and source.name == "DEFAULT" and read_settings().store) or value


Store = Annotated[
    str, typer.Option(help="directory for snapshots and tables", envvar="WEIR_STORE", callback=_configured)
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


def job_name(job: str) -> str:
    return default_name(job) if ":" in job else job


def examples(*lines: str) -> str:
    """Returns the examples at the end of a command's --help."""
    return "Examples:\n\n" + "\n\n".join(escape(line) for line in lines)
