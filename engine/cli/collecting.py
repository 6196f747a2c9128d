"""`weir gc`: deletes what JobMasters left behind that nobody needs any more."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from engine.cli.shared import Store, client_of, console, errors, examples
from engine.cli.tables import Rows
from engine.core.errors import WeirError
from engine.jobmaster.collecting import Collection, collect
from engine.observe.client import known_jobs, no_such_job
from engine.store.opening import open_store

Job = Annotated[
    str | None, typer.Argument(help="name of the job, or its import path (default: all jobs)", metavar="JOB")
]


def add_to(app: typer.Typer) -> None:
    app.command("gc", epilog=examples("weir gc --dry-run", "weir gc pageviews", "weir gc --json"))(gc)


def gc(
    job: Job = None,
    store: Store = ".weir",
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="only say what would be deleted")] = False,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="print JSON")] = False,
) -> None:
    """Delete what killed JobMasters left half-made: checkpoints, savepoints and folded files that nobody can use.

    A savepoint that lacks only its last step is completed. It is safe beside running jobs. Epochs, complete savepoints
    and what is under way are never touched. A running job deletes its old snapshots, files and records by itself.
    """
    names = [client_of(store, job).name] if job is not None else known_jobs(store)
    if job is not None and names[0] not in known_jobs(store):
        raise WeirError(no_such_job(store, names[0]))
    found = []
    with console.status("looking …") as line:
        for name in names:
            line.update(f"looking at {name} …")
            ended = client_of(store, name).ended() is not None
            found.append(collect(open_store(store), name, dry_run=dry_run, ended=ended))
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        _show(found, dry_run)
    if any(one.problems for one in found):
        raise typer.Exit(1)


def _show(found: list[Collection], dry_run: bool) -> None:
    rows = [(one, part) for one in found for part in one.collected]
    if rows:
        table = Rows("path", "files", "bytes", "why", wrap="why")
        for _, part in rows:
            table.add(part.path, str(part.files), f"{part.bytes:,}", part.why)
        console.print(table)
    total = sum(one.bytes for one in found)
    said = "would be deleted" if dry_run else "deleted"
    files = sum(part.files for _, part in rows)
    console.print(f"{files} files of {len(found)} jobs {said}, {total:,} bytes", highlight=False)
    for one in found:
        for path in one.completed:
            done = "would be completed" if dry_run else "completed"
            why = "its JobMaster ended right before the last step"
            console.print(f"{path} {done}: {why}; weir savepoint delete deletes it", highlight=False, soft_wrap=True)
        for problem in one.problems:
            errors.print(f"[bold red]{escape(one.job)}:[/] {escape(problem)}")
