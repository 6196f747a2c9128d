"""`weir drill` and `weir audit`: the same drills and audits as in Dagster, in a terminal.

Exit codes: 0 passed, 1 failed, 2 could not run.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from checks.audit import run_audit
from checks.docs import serve
from checks.drill import DrillFailed, Say, Share, drills, run_drill
from checks.needs import need_great_expectations
from checks.results import AuditResult, CheckResult, DrillResult, Verdict
from checks.spec import DrillSpec, load_spec
from engine.cli.shared import Store, console
from engine.core.errors import WeirError
from engine.host.places import local_folder

COLOURS = {Verdict.PASSED: "green", Verdict.FAILED: "red", Verdict.COULD_NOT_RUN: "yellow"}
CODES = {Verdict.PASSED: 0, Verdict.FAILED: 1, Verdict.COULD_NOT_RUN: 2}

JobArgument = Annotated[str, typer.Argument(help="name of a job in assets/, or its import path", metavar="JOB")]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="number that decides which worker is killed and when (default: random)")
]
Kills = Annotated[int, typer.Option(min=1, metavar="N", help="number of workers to kill, one after the other")]
Records = Annotated[
    int | None,
    typer.Option(min=100_000, metavar="N", help="records to read (default: 100,000, and 100,000 more per kill)"),
]
Audit = Annotated[bool, typer.Option("--audit/--no-audit", metavar="", help="audit the tables when the drill is over")]
Drill = Annotated[str | None, typer.Option("--drill", metavar="ID", help="drill to audit (default: the newest)")]
Serve = Annotated[bool, typer.Option("--serve", metavar="", help="show the Data Docs over HTTP until Ctrl-C")]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="port for --serve (0: any free one)")]


def drill(
    job: JobArgument,
    store: Store = ".weir",
    seed: Seed = None,
    kills: Kills = 1,
    records: Records = None,
    audit: Audit = True,
    serve_docs: Serve = False,
    port: Port = 0,
) -> None:
    """Run a copy of a job to its end, kill workers on the way, and audit that nothing was lost or doubled."""
    if audit:
        need_great_expectations("the audit of a drill (--no-audit leaves it out)")
    spec = load_spec(job)
    seed = random.randrange(1_000_000) if seed is None else seed
    console.print(f"drill of [bold]{spec.job}[/], seed {seed}", highlight=False)
    try:
        with _progress() as (say, share):
            result = run_drill(spec, store, seed=seed, kills=kills, records=records, progress=say, share=share)
    except DrillFailed as error:
        console.print(f"[bold yellow]the drill could not be carried out:[/] {escape(str(error))}", highlight=False)
        raise typer.Exit(CODES[Verdict.COULD_NOT_RUN]) from error
    if not audit:
        console.print(verdict_table([_reader_row(result)], _drill_figures(result)))
        raise typer.Exit(CODES[result.verdict])
    raise typer.Exit(CODES[_audit(spec, result, serve_docs, port)])


def audit(
    job: JobArgument,
    store: Store = ".weir",
    drill_id: Drill = None,
    serve_docs: Serve = False,
    port: Port = 0,
) -> None:
    """Audit the tables of a drill again: compare them with the records that the drill wrote down before it started."""
    need_great_expectations("an audit")
    spec = load_spec(job)
    found = [one for one in drills(store, spec.job) if drill_id is None or Path(one.store).name == drill_id]
    if not found:
        known = ", ".join(Path(one.store).name for one in drills(store, spec.job)) or "none"
        which = f"no drill {drill_id!r}" if drill_id else "no finished drill"
        raise WeirError(
            f"there is {which} of {spec.job!r} in {local_folder(store)} (finished drills: {known}). "
            f"To run one: weir drill {job}"
        )
    raise typer.Exit(CODES[_audit(spec, found[-1], serve_docs, port)])


def _audit(spec: DrillSpec, drilled: DrillResult, serve_docs: bool, port: int) -> Verdict:
    """Audits a drill. What its reader saw counts as well."""
    with _progress() as (say, share):
        result = run_audit(spec, drilled.store, progress=say, share=share)
    rows = [_reader_row(drilled), *(check_row(check) for check in result.checks)]
    console.print(verdict_table(rows, _drill_figures(drilled) | _audit_figures(result)))
    for check in result.checks:
        for row in check.rows[:5]:
            text = ", ".join(f"{name} {value}" for name, value in row.items())
            console.print(f"  {check.name}: {escape(text)}", highlight=False, soft_wrap=True)
    colour = COLOURS[result.verdict]
    said = f"{result.evaluated} of {result.expected} expectations evaluated"
    console.print(f"[bold {colour}]{spec.job}: {result.verdict.value}[/], {said}", highlight=False)
    if result.data_docs:
        console.print(f"Data Docs: {result.data_docs}", highlight=False, soft_wrap=True)
        if serve_docs:
            serve_until_interrupted(Path(result.data_docs).parent, port)
    return Verdict.FAILED if drilled.verdict is Verdict.FAILED else result.verdict


def serve_until_interrupted(folder: Path, port: int) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        serve(folder, port, lambda url: console.print(f"served at [bold]{url}[/] until Ctrl-C", highlight=False))


@contextlib.contextmanager
def _progress() -> Iterator[tuple[Say, Share]]:
    """Shows a bar with lines of progress above it; only the lines if the output is not a terminal."""
    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0)

        def say(text: str) -> None:
            console.print(f"  {escape(text)}", highlight=False, soft_wrap=True)

        yield say, lambda done: bar.update(task, completed=done)


Row = tuple[str, Verdict, str]


def _reader_row(result: DrillResult) -> Row:
    wrong = result.reader_violations
    said = f"{result.reader_reads} reads while it ran, each of whole epochs" if not wrong else wrong[0]
    return (
        "reader_saw_whole_epochs",
        result.verdict,
        said + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""),
    )


def check_row(check: CheckResult) -> Row:
    return (check.name, check.verdict, f"warning: {check.summary}" if check.only_warns else check.summary)


def _drill_figures(result: DrillResult) -> dict[str, str]:
    return {
        "records": f"{result.records:,}",
        "kills": str(result.kills),
        "recovery": f"{result.recovery_s:.1f} s",
        "checkpoints": str(result.checkpoints),
    }


def _audit_figures(result: AuditResult) -> dict[str, str]:
    return {name: f"{result.figures[name]:,}" for name in ("lost", "duplicated", "phantom") if name in result.figures}


def verdict_table(rows: list[Row], figures: dict[str, str]) -> Table:
    caption = "  ·  ".join(f"{name} {value}" for name, value in figures.items())
    table = Table(caption=caption, caption_justify="left")
    for heading in ("check", "verdict", "what was found"):
        table.add_column(heading, no_wrap=heading != "what was found")
    for name, verdict, text in rows:
        table.add_row(name, f"[bold {COLOURS[verdict]}]{verdict.value}[/]", escape(text))
    return table
