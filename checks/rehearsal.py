"""`weir upgrade JOB --rehearse N` and `weir rehearsal JOB`: an upgrade is rehearsed, and its verdict is shown (H7)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import typer
from rich.markup import escape

from checks.cli import CODES, COLOURS, Port, Serve, check_row, serve_until_interrupted, verdict_table
from checks.comparison import Say, compare
from checks.needs import need_great_expectations
from checks.results import AuditResult, read_result
from engine.cli.shared import JobName, Store, client_of, console
from engine.core.errors import WeirError
from engine.host.launch import MasterLaunch
from engine.observe.client import JobClient, known_jobs, no_such_job
from engine.process.rehearsing import rehearse

EXAMPLES = 5

Json = Annotated[bool, typer.Option("--json", metavar="", help="print JSON")]


def run_rehearsal(client: JobClient, launch: MasterLaunch, checkpoints: int, say: Say) -> AuditResult:
    """Runs the new version beside the old one, and compares what they wrote. Raises RehearsalFailed."""
    need_great_expectations("a rehearsal")
    rehearsed = rehearse(client, launch, checkpoints, say)
    for uid in rehearsed.others:
        say(f"{uid} is a table of one version only: it is not compared")
    for table in rehearsed.tables:
        if not table.why_not and table.identity is not None:
            say(f"{table.uid}: rows by {table.identity.time} after {table.after_ms} ms until {table.until_ms} ms")
    return compare(rehearsed, say)


def last_rehearsal(client: JobClient) -> AuditResult:
    """Returns the verdict of the newest rehearsal that came to its end."""
    found = sorted((Path(client.store) / "rehearsals" / client.name).glob("*/rehearsal.json"))
    if not found:
        if client.name not in known_jobs(client.store):
            raise WeirError(no_such_job(client.store, client.name))
        raise WeirError(
            f"job {client.name!r} has no rehearsal that came to its end: run `weir upgrade {client.name} --to PATH "
            "--rehearse 5`"
        )
    return read_result(found[-1], AuditResult, f"weir upgrade {client.name} --to PATH --rehearse 5")


@dataclass(frozen=True)
class Judged:
    """The verdict as the engine takes it (`engine.process.judging`)."""

    result: AuditResult

    @property
    def word(self) -> str:
        return self.result.verdict.value

    def fields(self) -> dict[str, Any]:
        return {"verdict": self.word, **cast("dict[str, Any]", msgspec.to_builtins(self.result))}

    def show(self, as_json: bool) -> int:
        return show_verdict(self, as_json)


def rehearse_upgrade(client: JobClient, launch: MasterLaunch, checkpoints: int, say: Say) -> Judged:
    """Rehearses an upgrade for the engine, which finds this by its entry point. Raises RehearsalFailed."""
    return Judged(run_rehearsal(client, launch, checkpoints, say))


def rehearsal(
    job: JobName, store: Store = ".weir", serve_docs: Serve = False, port: Port = 0, as_json: Json = False
) -> None:
    """Show the verdict of the last rehearsal of an upgrade, and its page."""
    result = last_rehearsal(client_of(store, job))
    code = show_verdict(Judged(result), as_json)
    if serve_docs and result.data_docs:
        serve_until_interrupted(Path(result.data_docs).parent, port)
    raise typer.Exit(code)


def show_verdict(judged: Judged, as_json: bool) -> int:
    """Prints the verdict. Returns the exit code: 0 passed, 1 failed, 2 could not run."""
    result = judged.result
    if as_json:
        print(msgspec.json.encode(judged.fields()).decode())
        return CODES[result.verdict]
    figures = {name: f"{value:,.0f}" for name, value in result.figures.items() if ": rows of the " in name}
    console.print(verdict_table([check_row(check) for check in result.checks], figures))
    for check in result.checks:
        for row in check.rows[:EXAMPLES]:
            text = ", ".join(f"{name} {value}" for name, value in row.items() if name != "label")
            console.print(f"  {check.name}: {escape(text)}", highlight=False, soft_wrap=True)
    said = f"{result.evaluated} of {result.expected} expectations evaluated"
    colour = COLOURS[result.verdict]
    console.print(f"[bold {colour}]rehearsal of {result.job}: {result.verdict.value}[/], {said}", highlight=False)
    if result.data_docs:
        console.print(
            f"page: {result.data_docs} (weir rehearsal {result.job} --serve)", highlight=False, soft_wrap=True
        )
    return CODES[result.verdict]
