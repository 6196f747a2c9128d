"""`weir drill` and `weir audit`: the same drills and audits as in Dagster, in a terminal.

Exit codes: 0 passed, 1 failed, 2 could not run.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from checks.audit import run_audit
from checks.catalogue import ALL, CATALOGUE, RANDOM, USUAL, choose
from checks.docs import serve
from checks.drill import drills, run_drill
from checks.drilled import DrillFailed, Share
from checks.live.audit import run_live_audit
from checks.live.drill import choose_live, run_live_drill
from checks.live.look import WITHIN
from checks.needs import need_great_expectations
from checks.records import DrillRecord, drills_folder, figures_of, keep, no_verdict, read_records, record_of, totals_of
from checks.report import REPORT, write_report
from checks.results import AuditResult, CheckResult, DrillResult, Verdict
from checks.spec import DrillSpec, load_spec
from checks.striking import Say
from engine.cli.shared import Store, client_of, console
from engine.core.errors import WeirError
from engine.host.places import local_folder
from engine.observe.client import known_jobs, no_such_job

Row = tuple[str, Verdict, str]

COLOURS = {Verdict.PASSED: "green", Verdict.FAILED: "red", Verdict.COULD_NOT_RUN: "yellow"}
CODES = {Verdict.PASSED: 0, Verdict.FAILED: 1, Verdict.COULD_NOT_RUN: 2}

JobArgument = Annotated[str, typer.Argument(help="name of a job in assets/, or its import path", metavar="JOB")]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="number that decides what is struck and when (default: random)")
]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="NAME",
        help=f"fault to cause (default: {USUAL}; --faults lists them), `{RANDOM}`, or `{ALL}`: a drill of each. "
        "Given several times, they strike one after the other",
    ),
]
Records = Annotated[
    int | None,
    typer.Option(
        min=100_000,
        metavar="N",
        help="records to read (default: 100,000, 100,000 more per fault, and those that pass while it lasts)",
    ),
]
Audit = Annotated[bool, typer.Option("--audit/--no-audit", metavar="", help="audit the tables when the drill is over")]
Drill = Annotated[str | None, typer.Option("--drill", metavar="ID", help="drill to audit (default: the newest)")]
Live = Annotated[
    bool,
    typer.Option("--live", metavar="", help="audit the live tables of the job, which may run, instead of a drill"),
]
Within = Annotated[
    int, typer.Option(min=1, metavar="N", help="with --live: number of audits within which each file is read again")
]
Full = Annotated[bool, typer.Option("--full", metavar="", help="with --live: read all files of the tables now")]
Serve = Annotated[
    bool,
    typer.Option("--serve", metavar="", help="show the pages over HTTP until Ctrl-C"),
]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="port for --serve (0: any free one)")]


def list_faults(asked: bool) -> None:
    """Prints the catalogue, and ends the command."""
    if not asked:
        return
    table = Table(show_lines=True)
    for heading in ("fault", "what the drill does", "expected cause of the restart", "how the job recovers"):
        table.add_column(heading, no_wrap=heading == "fault")
    for fault in CATALOGUE.values():
        table.add_row(*(escape(text) for text in (fault.name, fault.does, fault.cause, fault.recovery)))
    console.print(table)
    raise typer.Exit


LiveJob = Annotated[
    bool,
    typer.Option("--live", metavar="", help="break the running job itself, and audit its live tables; only kills"),
]
Times = Annotated[
    int, typer.Option(min=1, metavar="N", help="number of drills, each with the next seed; then a table of all")
]
Report = Annotated[
    bool,
    typer.Option(
        "--report",
        metavar="",
        help="make the report on all drills so far (--live: of a job without a drill.py)",
    ),
]
ListFaults = Annotated[
    bool, typer.Option("--faults", metavar="", is_eager=True, callback=list_faults, help="list all faults, and exit")
]


def drill(
    job: JobArgument,
    store: Store = ".weir",
    fault: Faults = None,
    seed: Seed = None,
    records: Records = None,
    audit: Audit = True,
    live: LiveJob = False,
    times: Times = 1,
    only_report: Report = False,
    serve_docs: Serve = False,
    port: Port = 0,
    _: ListFaults = False,
) -> None:
    """Run a copy of a job to its end, break it on the way, and audit that nothing was lost or doubled.

    The copy has a store of its own; the running job is not touched. The drill says beforehand what it will do. Try
    --fault jobmaster-killed, or --fault random --seed 7, or --fault all. A fault that did not happen, or a restart with
    another cause, gives no verdict: exit code 2.
    """
    if only_report:
        name = client_of(store, job).name if live else load_spec(job).job
        show_figures(read_records(store, name))
        _say_report(store, name, serve_docs, port)
        raise typer.Exit
    if audit:
        need_great_expectations("the audit of a drill (--no-audit leaves it out)")
    seed = random.randrange(1_000_000) if seed is None else seed
    names = fault or [USUAL]
    if live:
        if ALL in names or times > 1 or records is not None:
            raise WeirError(f"--live strikes the running job once: leave out --fault {ALL}, --times and --records")
        raise typer.Exit(CODES[_drill_live(store, job, seed, names, audit, serve_docs, port).verdict])
    spec = load_spec(job)
    if ALL in names and len(names) > 1:
        raise WeirError(f"--fault {ALL} drills every fault, one after the other: name no other beside it")
    choose([name for name in names if name != ALL], seed)  # an unknown name is said before anything runs
    each = [[name] for name in CATALOGUE] if ALL in names else [names]
    drills_of = [(next_seed, one) for next_seed in range(seed, seed + times) for one in each]
    done = [_drill(spec, store, one_seed, one, records, audit) for one_seed, one in drills_of]
    if len(done) > 1:
        rows = [(", ".join(one.faults), one.verdict, _outcome(one)) for one in done]
        console.print(verdict_table(rows, {"seeds": f"{seed} to {drills_of[-1][0]}"}, "faults"))
        show_figures(done)
    _say_report(store, spec.job, serve_docs, port)
    raise typer.Exit(max_code([one.verdict for one in done]))


def _drill(
    spec: DrillSpec,
    store: str,
    seed: int,
    faults: list[str],
    records: int | None,
    audit: bool,
) -> DrillRecord:
    """Runs one drill, and audits it. Returns what is kept of it."""
    started_ms = time.time_ns() // 1_000_000
    console.print(f"drill of [bold]{spec.job}[/], seed {seed}", highlight=False)
    try:
        with _progress() as (say, share):
            result = run_drill(spec, store, seed=seed, faults=faults, records=records, progress=say, share=share)
    except DrillFailed as error:
        console.print(f"[bold yellow]the drill could not be carried out:[/] {escape(str(error))}", highlight=False)
        record = no_verdict(started_ms, seed, [fault.name for fault in choose(faults, seed)], str(error))
        return _kept(store, spec.job, record)
    if audit:
        return _audit(spec, result, store)
    console.print(verdict_table([_reader_row(result)], _drill_figures(result)))
    return _kept(store, spec.job, record_of(result))


def _drill_live(
    store: str, job: str, seed: int, faults: list[str], audit: bool, serve_docs: bool, port: int
) -> DrillRecord:
    """Drills the running job, and audits its live tables. Returns what is kept of it."""
    client = client_of(store, job)
    if client.name not in known_jobs(store):
        raise WeirError(no_such_job(store, client.name))
    chosen = choose_live(faults, seed)
    started_ms = time.time_ns() // 1_000_000
    console.print(f"drill of the [bold]live[/] job [bold]{client.name}[/], seed {seed}", highlight=False)
    try:
        with _progress() as (say, _):
            done = run_live_drill(
                store, client.name, seed=seed, faults=faults, audit=run_live_audit if audit else None, progress=say
            )
    except DrillFailed as error:
        console.print(f"[bold yellow]the drill could not be carried out:[/] {escape(str(error))}", highlight=False)
        record = no_verdict(started_ms, seed, [fault.name for fault in chosen], str(error), live=True)
        return _kept(store, client.name, record)
    figures = {name: text for name, text in _drill_figures(done.drill).items() if name != "records"}
    if done.audit is not None:
        _show(done.audit, [check_row(check) for check in done.audit.checks], figures)
    else:
        console.print(verdict_table([], figures))
    pages = done.audit.data_docs if done.audit is not None else ""
    docs = os.path.relpath(pages, drills_folder(store, client.name)) if pages else ""
    record = _kept(store, client.name, record_of(done.drill, done.audit, live=True, docs=docs))
    _say_report(store, client.name, serve_docs, port)
    return record


def _kept(store: str, job: str, record: DrillRecord) -> DrillRecord:
    keep(store, job, record)
    write_report(store, job)
    return record


def _outcome(record: DrillRecord) -> str:
    if record.verdict is Verdict.COULD_NOT_RUN or not record.blows:
        return record.why
    recovered = f"recovered in {max(blow.recovery_s for blow in record.blows):.1f} s"
    return f"{recovered}; {record.why}" if record.why else recovered


def show_figures(records: Sequence[DrillRecord]) -> None:
    """Prints what the drills say of each fault that was drilled, and of all."""
    totals = totals_of(records)
    caption = (
        f"{totals.drills} drills, {totals.strikes} faults  ·  lost {totals.lost}  ·  doubled {totals.doubled}  ·  "
        f"partial reads {totals.partial_reads}  ·  red {totals.failed}  ·  no verdict {totals.without_verdict}"
    )
    table = Table(caption=caption, caption_justify="left")
    for heading in ("fault", "drills", "red", "no verdict", "recovery p50", "p99", "target"):
        table.add_column(heading, justify="left" if heading == "fault" else "right", no_wrap=True)
    for one in figures_of(records):
        if one.drills:
            p50, p99 = (f"{found:.1f} s" if (found := one.recovery_s(at)) is not None else "" for at in (0.5, 0.99))
            counts = (str(one.drills), str(one.failed), str(one.without_verdict))
            table.add_row(one.fault, *counts, p50, p99, f"{one.target_s:.0f} s")
    console.print(table)


def _say_report(store: str, job: str, serve_docs: bool, port: int) -> None:
    path = write_report(store, job)
    console.print(f"report on all drills: {path}", highlight=False, soft_wrap=True)
    if serve_docs:
        serve_until_interrupted(path.parent, port, REPORT)


def max_code(verdicts: list[Verdict]) -> int:
    """Returns the exit code of several drills: a red one counts most, and then one without a verdict."""
    worst = [verdict for verdict in (Verdict.FAILED, Verdict.COULD_NOT_RUN) if verdict in verdicts]
    return CODES[worst[0] if worst else Verdict.PASSED]


def audit(
    job: JobArgument,
    store: Store = ".weir",
    drill_id: Drill = None,
    live: Live = False,
    within: Within = WITHIN,
    full: Full = False,
    serve_docs: Serve = False,
    port: Port = 0,
) -> None:
    """Audit the tables of the newest drill again, or with --live those that the job writes for its readers.

    A drill's tables are compared with the records that the drill wrote down before it started. Live tables are compared
    with what the job's checkpoints counted, and with what earlier audits have seen: all new epochs, and a share of the
    older files.
    """
    need_great_expectations("an audit")
    if live:
        raise typer.Exit(CODES[_audit_live(store, job, within, full, serve_docs, port)])
    if full or within != WITHIN:
        raise WeirError("--full and --within say how live tables are audited: add --live")
    spec = load_spec(job)
    found = [one for one in drills(store, spec.job) if drill_id is None or Path(one.store).name == drill_id]
    if not found:
        known = ", ".join(Path(one.store).name for one in drills(store, spec.job)) or "none"
        which = f"no drill {drill_id!r}" if drill_id else "no finished drill"
        raise WeirError(
            f"there is {which} of {spec.job!r} in {local_folder(store)} (finished drills: {known}). "
            f"To run one: weir drill {job}"
        )
    record = _audit(spec, found[-1], store)
    _say_report(store, spec.job, serve_docs, port)
    raise typer.Exit(CODES[record.verdict])


def _audit(spec: DrillSpec, drilled: DrillResult, store: str) -> DrillRecord:
    """Audits a drill, and keeps what is found. What its reader saw counts as well."""
    with _progress() as (say, share):
        result = run_audit(spec, drilled.store, progress=say, share=share)
    rows = [_reader_row(drilled), *(check_row(check) for check in result.checks)]
    _show(result, rows, _drill_figures(drilled) | _audit_figures(result))
    return _kept(store, spec.job, record_of(drilled, result))


def _audit_live(store: str, job: str, within: int, full: bool, serve_docs: bool, port: int) -> Verdict:
    client = client_of(store, job)
    if client.name not in known_jobs(store):
        raise WeirError(no_such_job(store, client.name))
    with _progress() as (say, share):
        result = run_live_audit(store, client.name, within=within, full=full, progress=say, share=share)
    figures = {name.replace("_", " "): f"{value:,.0f}" for name, value in result.figures.items()}
    _show(result, [check_row(check) for check in result.checks], figures)
    if result.data_docs and serve_docs:
        serve_until_interrupted(Path(result.data_docs).parent, port)
    return result.verdict


def _show(result: AuditResult, rows: list[Row], figures: dict[str, str]) -> None:
    console.print(verdict_table(rows, figures))
    for check in result.checks:
        for row in check.rows[:5]:
            text = ", ".join(f"{name} {value}" for name, value in row.items() if value is not None)
            console.print(f"  {check.name}: {escape(text)}", highlight=False, soft_wrap=True)
    colour = COLOURS[result.verdict]
    said = f"{result.evaluated} of {result.expected} expectations evaluated"
    console.print(f"[bold {colour}]{result.job}: {result.verdict.value}[/], {said}", highlight=False)
    if result.data_docs:
        console.print(f"Data Docs: {result.data_docs}", highlight=False, soft_wrap=True)


def serve_until_interrupted(folder: Path, port: int, page: str = "index.html") -> None:
    """Serves the pages of a folder. Of a folder of drills only the report and Data Docs: it holds their stores too."""
    with contextlib.suppress(KeyboardInterrupt):
        serve(folder, port, page, lambda url: console.print(f"served at [bold]{url}[/] until Ctrl-C", highlight=False))


@contextlib.contextmanager
def _progress() -> Iterator[tuple[Say, Share]]:
    """Shows a bar with lines of progress above it; only the lines if the output is not a terminal."""
    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0)

        def say(text: str) -> None:
            console.print(f"  {escape(text)}", highlight=False, soft_wrap=True)

        yield say, lambda done: bar.update(task, completed=done)


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
        "faults": ", ".join(result.names),
        "recovery": f"{result.recovery_s:.1f} s",
        "checkpoints": str(result.checkpoints),
    }


def _audit_figures(result: AuditResult) -> dict[str, str]:
    return {name: f"{result.figures[name]:,}" for name in ("lost", "duplicated", "phantom") if name in result.figures}


def verdict_table(rows: list[Row], figures: dict[str, str], of: str = "check") -> Table:
    caption = "  ·  ".join(f"{name} {value}" for name, value in figures.items())
    table = Table(caption=caption, caption_justify="left")
    for heading in (of, "verdict", "what was found"):
        table.add_column(heading, no_wrap=heading != "what was found")
    for name, verdict, text in rows:
        table.add_row(name, f"[bold {COLOURS[verdict]}]{verdict.value}[/]", escape(text))
    return table
