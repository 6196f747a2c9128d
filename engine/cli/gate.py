"""`weir gate` shows what the gates of a job hold, and releases, discards or asks again about it."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.markup import escape

from engine.cli.inspecting import AsJson, print_json
from engine.cli.liveview import instant, span
from engine.cli.shared import JobName, Store, client_of, console, examples
from engine.cli.tables import Rows
from engine.core.errors import Ending, NotRunning, WeirError
from engine.jobmaster.status import CheckpointStatus
from engine.observe.client import JobClient
from engine.observe.gate_routes import GateStatus
from engine.observe.timeline import CheckpointDetail
from engine.protocol.gate import GateVerdict, Ruling

_Decision = Annotated[
    Ruling | None,
    typer.Argument(
        metavar="[release|discard|retry]",
        help="release: publish the held epoch as it is; discard: without the rows of the sinks that are held; retry: "
        "ask the gate again",
        show_default=False,
    ),
]
_Checkpoint = Annotated[
    int | None, typer.Option(metavar="ID", help="decide only if this checkpoint is the one that is held")
]
_Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="time to wait until the epoch is published")]


def add_to(app: typer.Typer) -> None:
    lines = ("weir gate pageviews", "weir gate pageviews release", "weir gate pageviews discard --checkpoint 42")
    app.command(epilog=examples(*lines))(gate)


def gate(
    job: JobName,
    decision: _Decision = None,
    store: Store = ".weir",
    checkpoint: _Checkpoint = None,
    timeout: _Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Show the epoch that a commit gate holds, or decide what becomes of it.

    While an epoch is held the job goes on, and readers see no newer epoch. After a restart it makes the same rows
    again and asks the gate again.
    """
    client = client_of(store, job)
    now = client.gate()
    if decision is None:
        if as_json:
            print_json(now)
        else:
            _show(client, now)
        return
    if not now.held:
        raise WeirError(f"no gate of job {client.name!r} holds an epoch now")
    looked_at = checkpoint if checkpoint is not None else now.held[0].checkpoint
    client.rule(looked_at, decision)
    if decision is Ruling.RETRY:
        console.print(f"the gate is asked again about checkpoint {looked_at}; weir gate {client.name} shows its answer")
        return
    done = _published(client, looked_at, timeout)
    if as_json:
        print_json(done)
        return
    sinks = ", ".join(one.sink for one in now.held)
    left_out = "" if decision is Ruling.RELEASE else f", without the rows of {sinks}"
    console.print(f"[green]epoch {done.epoch} is published[/]{escape(left_out)}", highlight=False)


def _published(client: JobClient, checkpoint: int, timeout: float) -> CheckpointDetail:
    """Waits until the epoch is published. It may be the last one, behind which the job ends at once."""
    try:
        return client.wait_for_checkpoint(checkpoint, timeout)
    except (NotRunning, Ending):
        record = client.timeline().checkpoint(checkpoint)
        if record is None or record.status is not CheckpointStatus.COMPLETED:
            raise
        return record.with_parts()


def _show(client: JobClient, now: GateStatus) -> None:
    if not now.held:
        console.print(f"no gate of {client.name} holds an epoch")
    else:
        table = Rows(
            "checkpoint", "epoch", "sink", "held for", "refused", "why", wrap="why", room=24, right=["refused"]
        )
        for one in now.held:
            age = span(time.time() * 1000 - one.since_ms)
            refused = f"{one.refused} of {one.rows}"
            table.add(str(one.checkpoint), str(one.epoch), one.sink, age, refused, f"{one.why} (gate: {one.gate})")
        console.print(table)
        first = now.held[0]
        console.print(
            f"since {instant(first.since_ms)} readers see no newer epoch; weir gate {client.name} release publishes it "
            f"as it is, weir gate {client.name} discard without these rows",
            highlight=False,
            soft_wrap=True,
        )
    for verdict in now.verdicts:
        console.print(escape(f"newest epoch: {_said(verdict)}"), highlight=False)


def _said(verdict: GateVerdict) -> str:
    what = f"{verdict.sink}: {verdict.decision.value}, {verdict.rows} rows"
    parts = [
        f"{verdict.refused} refused" * bool(verdict.refused),
        f"{verdict.withheld} withheld" * bool(verdict.withheld),
    ]
    return ", ".join([what, *filter(None, parts), f"{verdict.took_ms:.0f} ms ({verdict.gate})"])
