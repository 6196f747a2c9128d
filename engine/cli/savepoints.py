"""The commands of `weir` about savepoints, and the one that stops a job behind a last epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from engine.cli.inspecting import AsJson, print_json
from engine.cli.launching import store_hint
from engine.cli.liveview import instant, size, span
from engine.cli.shared import JobName, Store, client_of, console, errors, examples
from engine.cli.tables import Rows
from engine.core.errors import WeirError
from engine.host.run_folder import MasterExit
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.observe.savepoints import SavepointRecord, SavepointState
from engine.process.from_savepoint import delete_savepoint
from engine.store.places import check_place

_Name = Annotated[str | None, typer.Option(metavar="NAME", help="name of the savepoint (default: date and time)")]
_To = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="folder or s3://bucket/prefix to put it into (default: in the store)"),
]
_Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="time to wait (default: until it is over); it may still complete afterwards"),
]


def add_to(app: typer.Typer) -> None:
    for command, *lines in (
        (
            savepoint,
            "weir savepoint pageviews",
            "weir savepoint pageviews --name before-v2 --to /backups",
            "weir savepoint delete pageviews/before-v2",
        ),
        (savepoints, "weir savepoints pageviews", "weir savepoints pageviews --json | jq -r '.[0].place'"),
        (
            stop,
            "weir stop pageviews",
            "weir stop pageviews --savepoint --name before-v2",
            "weir stop pageviews --drain",
        ),
    ):
        app.command(epilog=examples(*lines))(command)


def savepoint(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB | delete SAVEPOINT",
            help="name of the job; or the word delete and a savepoint, by JOB/NAME or by its folder",
        ),
    ],
    store: Store = ".weir",
    name: _Name = None,
    to: _To = None,
    timeout: _Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Take a savepoint of a running job and wait until it is complete; the job goes on. Or delete one.

    A savepoint holds all that the job needs, and can be moved anywhere. Weir deletes it only if it is told to. Begin
    a job from it with `weir submit JOB --from SAVEPOINT`.
    """
    if words[0] == "delete" and len(words) == 2:
        if name is not None or to is not None:
            raise WeirError(
                "weir savepoint delete takes no --name and no --to: write JOB/NAME, or the savepoint's folder"
            )
        place, head = delete_savepoint(store, words[1])
        console.print(
            f"deleted {escape(place)}: savepoint {head.name} of {head.job}, {size(head.state_bytes)}",
            highlight=False,
            soft_wrap=True,
        )
        return
    if len(words) == 2 and words[0] in ("dispose", "remove", "rm"):
        raise WeirError(f"to delete a savepoint, write weir savepoint delete {words[1]}")
    if len(words) == 2:
        what, option = ("folder", "--to") if "/" in words[1] else ("name", "--name")
        raise WeirError(f"the {what} is an option: weir savepoint {words[0]} {option} {words[1]}")
    if len(words) != 1 or words == ["delete"]:
        raise WeirError("write weir savepoint JOB to take one, or weir savepoint delete JOB/NAME to delete one")
    client = client_of(store, words[0])
    with console.status("taking the snapshot …") as line:
        asked = client.savepoint(name, absolute(to))

        def show(record: SavepointRecord) -> None:
            if record.bytes is not None:
                line.update(f"copying {size(record.bytes)} to {escape(record.place)} …")

        made = client.wait_for_savepoint(asked, timeout, show)
    if as_json:
        print_json(made)
        return
    console.print(f"[green]savepoint {escape(made.savepoint)}[/] {_figures(made)}", highlight=False)
    console.print(f"  {escape(made.place)}", highlight=False, soft_wrap=True)


def absolute(to: str | None) -> str | None:
    """Returns the address as the JobMaster understands it, whose working directory is another."""
    if to is None:
        return None
    check_place(to)
    return to if "://" in to else str(Path(to).absolute())


def _figures(made: SavepointRecord) -> str:
    took = f", {span(made.duration_ms)}" if made.duration_ms is not None else ""
    return f"{size(made.bytes or 0)}, after epoch {made.epoch}{took}"


def savepoints(job: JobName, store: Store = ".weir", as_json: AsJson = False) -> None:
    """List the savepoints of a job, newest first, whether or not it runs: where they are, and which failed and why."""
    client = client_of(store, job)
    found = client.savepoints()
    if as_json:
        print_json(found)
        return
    if not found:
        how = f"weir savepoint {client.name}{store_hint(store)}"
        console.print(f"{client.name} has no savepoints; take one with: {how}", soft_wrap=True)
        return
    table = Rows("savepoint", "state", "taken", "epoch", "size", "place", wrap="place", right=["epoch", "size"])
    for one in found:
        there = one.state is SavepointState.COMPLETED
        known = one.bytes is not None
        table.add(
            one.savepoint,
            one.state,
            instant(one.requested_at_ms),
            str(one.epoch if one.epoch is not None else "–"),
            size(one.bytes or 0) if known else "–",
            one.reason or (one.place if there or one.state is SavepointState.PENDING else "deleted or moved away"),
        )
    console.print(table)


def stop(
    job: JobName,
    store: Store = ".weir",
    savepoint: Annotated[
        bool,
        typer.Option("--savepoint", metavar="", help="also make the last epoch a savepoint; --name and --to imply it"),
    ] = False,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain",
            metavar="",
            help="end the sources first: all windows and timers fire, and the job is over for good",
        ),
    ] = False,
    name: _Name = None,
    to: _To = None,
    timeout: _Timeout = None,
) -> None:
    """Stop a job behind a last epoch, which is committed before the job ends. Nothing is processed twice afterwards.

    The next `weir submit` goes on from that epoch. If the job can't be stopped so, it goes on, and this says why.
    """
    client = client_of(store, job)
    with console.status("stopping …") as line:
        made = client.stop(drain, savepoint, name, absolute(to))
        ended = client.wait_until_stopped(timeout, lambda doing: line.update(f"stopping: {escape(doing)} …"))
    _print_stopped(client, ended, made)


def _print_stopped(client: JobClient, ended: MasterExit, savepoint: str | None) -> None:
    """`savepoint`: the name of the one that was asked for. It may exist although the job ended in another way."""
    name = client.name
    if ended.outcome not in (Outcome.STOPPED, Outcome.FINISHED):
        wanted = (one for one in client.savepoints() if one.savepoint == savepoint)
        done = next((one.place for one in wanted if one.state is SavepointState.COMPLETED), None)
        there = f". Its savepoint {done} is complete" if done is not None else ""
        said = escape(ended.reason + client.how_again(ended) + there)
        errors.print(f"[bold red]error:[/] {name} is {ended.outcome}: {said}")
        raise typer.Exit(1)
    if savepoint is not None:
        client.savepoint_of_stop(savepoint, ended)
    console.print(f"[green]{name} is {ended.outcome}[/]: {escape(ended.reason)}", highlight=False, soft_wrap=True)
