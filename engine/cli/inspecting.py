"""The commands of `weir` that only look: jobs, status, checkpoints, restarts, logs. They change nothing.

They ask the JobMaster over HTTP what a job is doing now. They read what it did from its history and logs in the store,
so that this also works after the job has ended.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from engine.cli.liveview import count, instant, render, shares, size, span
from engine.cli.shared import JobName, Store, console, errors, examples, job_name
from engine.core.errors import NotRunning, WeirError
from engine.jobmaster.actions import Outcome
from engine.jobmaster.events import OperatorFigures, SubtaskFigures
from engine.jobmaster.figures import TIMES
from engine.observe.client import JobClient, known_jobs
from engine.observe.logs import LogReader
from engine.observe.timeline import CheckpointRecord, RestartRecord, VertexFigures

FOLLOW_S = 0.3

AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]


def add_to(app: typer.Typer) -> None:
    for command, *lines in (
        (jobs, "weir jobs", "weir jobs --json | jq -r '.[] | select(.state == \"failed\") | .job'"),
        (status, "weir status pageviews", "weir status pageviews --json | jq .vertices"),
        (checkpoints, "weir checkpoints pageviews", "weir checkpoints pageviews 42"),
        (restarts, "weir restarts pageviews"),
        (logs, "weir logs pageviews -f", "weir logs pageviews --operator clean", "weir logs pageviews --slot 0"),
    ):
        app.command(epilog=examples(*lines))(command)


def jobs(store: Store = ".weir", as_json: AsJson = False) -> None:
    """List the jobs of a store: those that run, and those that have ended."""
    with ThreadPoolExecutor() as pool:  # whether a supervisor lives takes seconds to know
        found = list(pool.map(lambda name: _listed(JobClient(store, name)), known_jobs(store)))
    if as_json:
        _print_json(found)
        return
    if not found:
        console.print(f"no jobs in {Path(store).absolute()}; start one with: weir run assets.pageviews.job:job")
        return
    table = _table("job", "state", "uptime", "restarts", "epoch", "last checkpoint", "guarantee", "trouble")
    for job in found:
        ago = time.time() * 1000 - job.last_checkpoint_at_ms if job.last_checkpoint_at_ms else None
        table.add_row(
            job.job,
            job.state,
            span(job.uptime_ms),
            str(job.restarts),
            str(job.epoch or "–"),
            f"{span(ago)} ago" if ago is not None else "–",
            job.guarantee,
            escape(job.trouble),
        )
    console.print(table)


class ListedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a store. `state` is its phase while it runs, or how it ended; `trouble` says why it does not run."""

    job: str
    state: str
    uptime_ms: int | None = None
    guarantee: str = ""
    trouble: str = ""
    jobmaster_deaths: int = 0
    restarts: int
    epoch: int | None
    started_at_ms: int | None
    ended_at_ms: int | None
    last_checkpoint_at_ms: int | None


def _listed(client: JobClient) -> ListedJob:
    timeline = client.timeline()
    last = timeline.last_completed
    deaths = client.folder.read_deaths()
    known = ListedJob(
        job=client.name,
        state="",
        trouble=deaths.in_words(time.time_ns() // 1_000_000) if deaths is not None and deaths.in_a_row else "",
        jobmaster_deaths=deaths.total if deaths is not None else 0,
        restarts=timeline.restarts_since_start,
        epoch=last.epoch if last else None,
        started_at_ms=timeline.started_at_ms,
        ended_at_ms=timeline.ended_at_ms,
        last_checkpoint_at_ms=last.ended_at_ms if last else None,
    )
    try:
        now = client.status()
    except WeirError as error:
        ended = client.ended()
        if ended is None and isinstance(error, NotRunning) and (doing := client.looked_after()) is not None:
            replacing = "replacing its JobMaster" if known.trouble else "starting"
            return msgspec.structs.replace(known, state=f"{replacing}: {doing}")
        state = ended.outcome if ended else "not running" if isinstance(error, NotRunning) else "not answering"
        trouble = ended.reason if ended and ended.outcome is Outcome.FAILED else ""
        return msgspec.structs.replace(known, state=state, trouble=trouble)
    return msgspec.structs.replace(
        known,
        state=now.phase.value,
        uptime_ms=now.uptime_ms,
        guarantee=now.guarantee,
        restarts=now.restarts,
        epoch=now.epoch,
    )


def status(job: JobName, store: Store = ".weir", as_json: AsJson = False) -> None:
    """Show what a running job does: rates, watermarks and lag, back pressure, by operator and subtask."""
    now = JobClient(store, job_name(job)).status()
    if as_json:
        _print_json(now)
        return
    console.print(render(now))
    table = _table("subtask", "slot", "rows/s in", "rows/s out", "watermark", "lag", "busy · back-pressured · idle")
    for vertex in now.vertices:
        for subtask in vertex.subtasks:
            table.add_row(
                f"{vertex.id}[{subtask.subtask}]",
                str(subtask.slot),
                count(subtask.rows_in_per_s),
                count(subtask.rows_out_per_s),
                instant(subtask.watermark_ms),
                span(subtask.lag_ms),
                shares(subtask),
            )
    console.print(table)
    if now.spark_ui:
        console.print(f"slots in Spark's UI: {now.spark_ui}", highlight=False, soft_wrap=True)


def checkpoints(
    job: JobName,
    number: Annotated[int | None, typer.Argument(help="checkpoint to show with all its parts", metavar="[ID]")] = None,
    store: Store = ".weir",
    limit: Annotated[int, typer.Option(min=1, help="number of checkpoints to show, newest first")] = 20,
    as_json: AsJson = False,
) -> None:
    """List a job's checkpoints, or show where the time of one went. This also works after the job has ended."""
    timeline = JobClient(store, job_name(job)).timeline()
    if number is not None:
        record = timeline.checkpoint(number)
        if record is None:
            raise WeirError(f"checkpoint {number} is not in the history; weir checkpoints {job} lists those that are")
        _show_one(record, as_json)
        return
    found = timeline.checkpoints[:limit]
    if as_json:
        _print_json([record.summary() for record in found])
        return
    if not found:
        console.print(f"{job_name(job)} has no checkpoint yet; weir checkpoint {job} makes one")
        return
    console.print(_checkpoint_table(found))


def _checkpoint_table(records: list[CheckpointRecord]) -> Table:
    table = _table("id", "attempt", "triggered", "state", "duration", *_TIME_NAMES, "size")
    for record in records:
        state = f"epoch {record.epoch}" if record.epoch and record.over else record.status.value
        table.add_row(
            str(record.checkpoint),
            record.attempt,
            instant(record.triggered_at_ms),
            escape(state if not record.why else f"{record.status.value}: {record.why}: {record.detail}"),
            span(record.duration_ms),
            *(span(getattr(record, name)) for name in TIMES),
            size(record.state_bytes) if record.state_bytes is not None else "–",
        )
    return table


def _show_one(record: CheckpointRecord, as_json: bool) -> None:
    detail = record.with_parts()
    if as_json:
        _print_json(detail)
        return
    console.print(_checkpoint_table([record]))
    if not detail.vertices:
        return
    table = _table("operator", "subtask", *_TIME_NAMES, "size")
    for vertex in detail.vertices:
        table.add_row(f"[bold]{vertex.vertex}[/]", "all", *_times(vertex), size(vertex.state_bytes))
        for subtask in vertex.subtasks:
            table.add_row("", str(subtask.subtask), *_times(subtask), size(subtask.state_bytes))
            for uid, part in subtask.operators.items():
                table.add_row(f"  {uid}", str(subtask.subtask), *_times(part), size(part.state_bytes))
    console.print("", table)


_TIME_NAMES = ("start delay", "alignment", "sync", "async")


def _times(figures: VertexFigures | SubtaskFigures | OperatorFigures) -> list[str]:
    return [span(getattr(figures, name)) if hasattr(figures, name) else "" for name in TIMES]


def restarts(job: JobName, store: Store = ".weir", as_json: AsJson = False) -> None:
    """List why and when attempts of a job ended, and how long it took until the job ran again."""
    found = JobClient(store, job_name(job)).timeline().restarts
    if as_json:
        _print_json(found)
        return
    if not found:
        console.print(f"{job_name(job)} was never restarted")
        return
    table = _table("when", "attempt", "cause", "where", "ran again after", "what happened")
    for record in found:
        where = f"{record.uid or record.vertex}[{record.subtask}]" if record.subtask is not None else record.uid
        slot = f"slot {record.slot}" if record.slot is not None else ""
        table.add_row(
            instant(record.at_ms),
            record.attempt,
            record.cause,
            where or slot or "–",
            span(record.recovery_ms),
            escape(record.detail or record.text),
        )
    console.print(table)
    _show_tracebacks(found)


def _show_tracebacks(records: list[RestartRecord]) -> None:
    """Prints the newest traceback of each error of the job's own code; most restarts repeat an error."""
    shown: set[tuple[str, str, str]] = set()
    for record in records:
        raised = record.raised
        if raised is None or not raised.traceback or (error := (record.uid, raised.type, raised.line)) in shown:
            continue
        shown.add(error)
        at = f"{record.uid}[{record.subtask}], {raised.position}"
        console.print(f"\n{escape(at)}, attempt {record.attempt}:", highlight=False, soft_wrap=True)
        console.print(escape(raised.traceback.rstrip()), highlight=False, soft_wrap=True)


def logs(
    job: JobName,
    store: Store = ".weir",
    operator: Annotated[str | None, typer.Option(metavar="UID", help="show only lines of this operator's code")] = None,
    slot: Annotated[int | None, typer.Option(min=0, metavar="N", help="show only this slot")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="wait for new lines until the job has ended")] = False,
) -> None:
    """Show what a job's code prints, logs and warns of, on all slots, and what its JobMaster decides."""
    client = JobClient(store, job_name(job))
    client.timeline()  # raises an error if there is no such job
    reader = LogReader(client.folder.logs, slot, operator)
    shown = _show(reader)
    while follow:
        over = client.ended() is not None
        shown += _show(reader)
        if over:
            break
        time.sleep(FOLLOW_S)
    if not shown:
        seen = ", ".join(sorted(reader.operators - {""}))
        what = f" of operator {operator!r} (there are lines of: {seen or 'none'})" if operator else ""
        errors.print(f"no line{what} yet; what Spark itself prints is in {client.folder.log_file}", highlight=False)


def _show(reader: LogReader) -> int:
    shown = 0
    for line in reader.read():
        print(f"{line.at} {line.name:<7} {line.operator:<12} {line.text}", flush=True)
        shown += 1
    return shown


def _print_json(value: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False, header_style="bright_black")
