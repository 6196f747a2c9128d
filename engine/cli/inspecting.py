"""The commands of `weir` that only look: jobs, status, checkpoints, restarts. They change nothing.

They ask the JobMaster over HTTP what a job is doing now. They read what it did from its history in the store,
so that this also works after the job has ended.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape
from rich.text import Text

from engine.cli.launching import store_hint
from engine.cli.liveview import FLOW, NUMBERS, count, instant, render, shares, size, span
from engine.cli.shared import JobName, Store, client_of, console, examples, trouble_of, unfinished_upgrade
from engine.cli.tables import Rows
from engine.core.errors import NotRunning, WeirError
from engine.jobmaster.actions import Outcome
from engine.jobmaster.events import OperatorFigures, SubtaskFigures
from engine.jobmaster.figures import TIMES
from engine.observe.client import JobClient, after_a_reboot, is_missing, known_jobs, resume_it
from engine.observe.timeline import CheckpointRecord, RestartRecord, VertexFigures
from engine.process.going_on import goes_on
from engine.process.resume import Wanted, wanted
from engine.store.opening import address_of

AsJson = Annotated[bool, typer.Option("--json", metavar="", help="print JSON, for scripts")]


def add_to(app: typer.Typer) -> None:
    for command, *lines in (
        (jobs, "weir jobs", "weir jobs --json | jq -r '.[] | select(.state == \"failed\") | .job'"),
        (status, "weir status pageviews", "weir status pageviews --json | jq .vertices"),
        (checkpoints, "weir checkpoints pageviews", "weir checkpoints pageviews 42"),
        (restarts, "weir restarts pageviews"),
    ):
        app.command(epilog=examples(*lines))(command)


def jobs(store: Store = ".weir", as_json: AsJson = False) -> None:
    """List the jobs of a store: those that run, and those that have ended."""
    with ThreadPoolExecutor() as pool:  # whether a supervisor lives takes seconds to know
        found = list(pool.map(lambda name: _listed_at_all(JobClient(store, name)), known_jobs(store)))
    if as_json:
        print_json(found)
        return
    if not found:
        missing = ", which does not exist" if is_missing(store) else ""
        how = f"weir run assets.pageviews.job:job{store_hint(store)}"
        console.print(f"no jobs in {address_of(store)}{missing}; start one with: {how}", soft_wrap=True)
        return
    table = Rows(
        "job",
        "state",
        "up",
        "restarts*",
        "epoch",
        "last checkpoint",
        "guarantee",
        wrap="guarantee",
        room=12,
        right=["restarts*", "epoch"],
    )
    for job in found:
        ago = time.time() * 1000 - job.last_checkpoint_at_ms if job.last_checkpoint_at_ms else None
        table.add(
            job.job,
            job.state.partition(":")[0],
            span(job.uptime_ms),
            str(job.restarts),
            str(job.epoch or "–"),
            f"{span(ago)} ago" if ago is not None else "–",
            job.guarantee,
        )
    console.print(table)
    console.print("* since its last start; weir restarts JOB lists those of earlier starts, too", style="bright_black")
    for job in found:
        doing = job.state.partition(": ")[2]
        if said := "; ".join(filter(None, [doing, job.trouble, job.upgrade, job.next_start])):
            console.print(f"[bold]{escape(job.job)}[/]: {escape(said)}", highlight=False)


class ListedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a store. `state` is its phase while it runs, or how it ended; `trouble` says why it does not run.

    `next_start` says what the next start of a job that does not run goes on from, `upgrade` that one is not done.
    """

    job: str
    state: str
    uptime_ms: int | None = None
    guarantee: str = ""
    trouble: str = ""
    upgrade: str = ""
    next_start: str = ""
    jobmaster_deaths: int = 0
    restarts: int
    epoch: int | None
    started_at_ms: int | None
    ended_at_ms: int | None
    last_checkpoint_at_ms: int | None


def _listed_at_all(client: JobClient) -> ListedJob:
    """One job whose files can't be read must not hide the others."""
    try:
        return _listed(client)
    except OSError as error:
        return ListedJob(
            job=client.name,
            state="unreadable",
            trouble=f"{error.strerror or error}: {error.filename or client.folder.folder}",
            restarts=0,
            epoch=None,
            started_at_ms=None,
            ended_at_ms=None,
            last_checkpoint_at_ms=None,
        )


def _listed(client: JobClient) -> ListedJob:
    timeline = client.timeline()
    last = timeline.last_completed
    deaths = client.folder.read_deaths()
    known = ListedJob(
        job=client.name,
        state="",
        trouble=deaths.in_words(time.time_ns() // 1_000_000) if deaths is not None and deaths.in_a_row else "",
        upgrade=unfinished_upgrade(client),
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
            replacing = "restarting" if known.trouble else "starting"
            return msgspec.structs.replace(known, state=f"{replacing}: {doing}")
        if (host := client.folder.started_elsewhere()) is not None:
            return msgspec.structs.replace(known, state=f"elsewhere: it was started last on {host}", trouble="")
        state = ended.outcome if ended else "not running" if isinstance(error, NotRunning) else "not answering"
        trouble = ended.reason if ended and ended.outcome is Outcome.FAILED else ""
        return msgspec.structs.replace(known, state=state, trouble=trouble, next_start=next_start(client))
    return msgspec.structs.replace(
        known,
        state=now.phase.value,
        uptime_ms=now.uptime_ms,
        guarantee=now.guarantee,
        restarts=now.restarts,
        epoch=now.epoch,
    )


def next_start(client: JobClient) -> str:
    """Says what the next start of a job that nobody runs goes on from, and whether it is to be resumed."""
    words = goes_on(client.store, client.name)
    found = wanted(client.folder.read_desired(), client.ended(), looked_after=False)
    if found is Wanted.RESUMED:
        if unfinished_upgrade(client):
            return ""  # the upgrade is shown, and how it is carried on
        return f"it should be running: {resume_it(client.name)}{f' and {words}' if words else ''}"
    return f"its next start {words}" if words else ""


def status(job: JobName, store: Store = ".weir", as_json: AsJson = False) -> None:
    """Show what a running job does: rates, watermarks and lag, back pressure, by operator and subtask."""
    client = client_of(store, job)
    if not as_json and (upgrade := unfinished_upgrade(client)):
        console.print(f"[yellow]{escape(upgrade)}[/]", highlight=False, soft_wrap=True)
    try:
        now = client.status()
    except NotRunning as error:
        if as_json or client.name not in known_jobs(store):
            raise
        if not _show_starting(client):
            then = next_start(client)
            said = str(error)
            if "weir resume" in then:  # it is said once
                said = said.removesuffix(f"; {resume_it(client.name)}").removesuffix(f"; {after_a_reboot(client.name)}")
            raise NotRunning(f"{said}; {then}" if then else said) from error
        return
    if as_json:
        print_json(now)
        return
    console.print(render(now, framed=console.is_terminal))
    table = Rows("subtask", "slot", *FLOW, right=NUMBERS)
    for vertex in now.vertices:
        for subtask in vertex.subtasks:
            table.add(
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


def _show_starting(client: JobClient) -> bool:
    """Says what the supervisor of a job that does not run yet is doing. Returns False if there is none."""
    if (doing := client.looked_after()) is None:
        return False
    trouble = trouble_of(client)
    again = "its JobMaster is being replaced" if trouble else "starting"
    words = goes_on(client.store, client.name)
    console.print(
        f"[bold]{client.name}[/] [yellow]{again}[/] ({doing}){f': {words}' if words else ''}", highlight=False
    )
    if trouble:
        console.print(escape(trouble), highlight=False)
    return True


def checkpoints(
    job: JobName,
    number: Annotated[int | None, typer.Argument(help="checkpoint to show with all its parts", metavar="ID")] = None,
    store: Store = ".weir",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="number of checkpoints to show, newest first")] = 20,
    as_json: AsJson = False,
) -> None:
    """List a job's checkpoints, or show where the time of one went. This also works after the job has ended."""
    client = client_of(store, job)
    timeline = client.timeline()
    if number is not None:
        record = timeline.checkpoint(number)
        if record is None:
            raise WeirError(f"checkpoint {number} is not in the history; weir checkpoints {job} lists those that are")
        _show_one(record, as_json)
        return
    found = timeline.checkpoints[:limit]
    if as_json:
        print_json([record.summary() for record in found])
        return
    if not found:
        console.print(f"{client.name} has no checkpoint yet; weir checkpoint {client.name} makes one")
        return
    _print_checkpoints(found)


def _print_checkpoints(records: list[CheckpointRecord]) -> None:
    table = Rows("id", "attempt", "triggered", "state", "took", *_SHORT_NAMES, "size", right=["id"])
    for record in records:
        state = f"epoch {record.epoch}" if record.epoch and record.over else record.status.value
        table.add(
            str(record.checkpoint),
            record.attempt,
            instant(record.triggered_at_ms),
            state if not record.why else record.status.value,
            span(record.duration_ms),
            *(span(getattr(record, name)) for name in TIMES),
            size(record.state_bytes) if record.state_bytes is not None else "–",
        )
    console.print(table)
    for record in records:
        if record.why:
            said = f"checkpoint {record.checkpoint} {record.status.value}: {record.why}: {record.detail}"
            console.print(escape(said), highlight=False)


def _show_one(record: CheckpointRecord, as_json: bool) -> None:
    detail = record.with_parts()
    if as_json:
        print_json(detail)
        return
    _print_checkpoints([record])
    if not detail.vertices:
        return
    table = Rows("operator", "subtask", *_TIME_NAMES, "size")
    for vertex in detail.vertices:
        table.add(Text(vertex.vertex, style="bold"), "all", *_times(vertex), size(vertex.state_bytes))
        for subtask in vertex.subtasks:
            table.add("  all operators", str(subtask.subtask), *_times(subtask), size(subtask.state_bytes))
            for uid, part in subtask.operators.items():
                table.add(f"  {uid}", str(subtask.subtask), *_times(part), size(part.state_bytes))
    console.print("", table)


_TIME_NAMES = ("start delay", "alignment", "sync", "async")
_SHORT_NAMES = ("delay", "align", "sync", "async")


def _times(figures: VertexFigures | SubtaskFigures | OperatorFigures) -> list[str]:
    return [span(getattr(figures, name)) if hasattr(figures, name) else "" for name in TIMES]


def restarts(job: JobName, store: Store = ".weir", as_json: AsJson = False) -> None:
    """List why and when attempts of a job ended, and how long it took until the job ran again."""
    client = client_of(store, job)
    found = client.timeline().restarts
    if as_json:
        print_json(found)
        return
    if trouble := trouble_of(client):
        console.print(f"{escape(trouble)}; weir logs {client.name} shows more", highlight=False)
    if not found:
        console.print(
            f"{client.name}: no attempt of it has failed" if trouble else f"{client.name} was never restarted"
        )
        return
    table = Rows("when", "attempt", "cause", "where", "ran after", "what happened", wrap="what happened", room=24)
    for record in found:
        where = f"{record.uid or record.vertex}[{record.subtask}]" if record.subtask is not None else record.uid
        slot = f"slot {record.slot}" if record.slot is not None else ""
        table.add(
            instant(record.at_ms),
            record.attempt,
            record.cause,
            where or slot or "–",
            span(record.recovery_ms),
            record.detail or record.text,
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


def print_json(value: Any) -> None:
    """Prints a value as JSON, for `--json`."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
