"""`weir rescale` gives a running job another parallelism, `weir rescales` lists what came of it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from engine.cli.inspecting import AsJson, print_json
from engine.cli.launching import store_hint
from engine.cli.liveview import instant, span
from engine.cli.shared import JobName, Store, client_of, console, examples
from engine.cli.tables import Rows
from engine.core.errors import WeirError
from engine.observe.rescales import RescaleRecord, RescaleState

_Parallelism = Annotated[
    int | None,
    typer.Option("--parallelism", "-p", min=1, metavar="N", help="parallelism of all operators that set none in code"),
]
_Operator = Annotated[
    list[str] | None,
    typer.Option(metavar="UID=N", help="parallelism of one operator, before that in its code; may be repeated"),
]
_Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="time to wait; the rescale goes on without you")]


def add_to(app: typer.Typer) -> None:
    for command, *lines in (
        (
            rescale,
            "weir rescale pageviews --parallelism 3",
            "weir rescale pageviews --operator pv=4 --operator out=2",
            "weir status pageviews; weir rescales pageviews",
        ),
        (rescales, "weir rescales pageviews", "weir rescales pageviews --json | jq '.[0].pause_ms'"),
    ):
        app.command(epilog=examples(*lines))(command)


def rescale(
    job: JobName,
    store: Store = ".weir",
    parallelism: _Parallelism = None,
    operator: _Operator = None,
    timeout: _Timeout = 300.0,
    as_json: AsJson = False,
) -> None:
    """Give a running job another parallelism, and wait until it runs with it.

    Further slots start while the job goes on. Then it takes a checkpoint and goes on from there with the new subtasks.
    A digest proves that they have the same state. If slots do not come or anything fails, it goes on as before.
    """
    operators = _operators(operator)
    if parallelism is None and not operators:
        raise WeirError("say which parallelism: --parallelism N for all operators, --operator UID=N for single ones")
    client = client_of(store, job)
    asked = client.rescale(parallelism, operators)
    if asked is None:
        if as_json:
            print_json(None)
        else:
            console.print(f"{client.name} runs at this parallelism already")
        return
    with console.status(f"rescaling {client.name} …") as line:
        done = client.wait_for_rescale(
            asked, timeout, lambda record: line.update(f"rescaling {client.name}: {record.state.value} …")
        )
    if as_json:
        print_json(done)
    elif done.state is RescaleState.COMPLETED:
        console.print(f"[green]{client.name} is rescaled:[/] {_change(done)}", highlight=False)
        console.print(f"pause {_pause(done)}, from epoch {done.epoch}", highlight=False)
        console.print(f"state before {done.digest_before}, after {done.digest_after}: {done.rows} rows, the same")
    if done.state is RescaleState.FAILED:
        raise WeirError(f"job {client.name!r} was not rescaled: {done.reason}. It goes on at {_sizes(done.before)}")
    if done.state is RescaleState.INTERRUPTED:
        raise WeirError(
            f"the rescale of job {client.name!r} was interrupted: {done.reason}. `weir status {client.name}` shows "
            "which parallelism it has"
        )


def rescales(job: JobName, store: Store = ".weir", as_json: AsJson = False) -> None:
    """List the rescales of a job, newest first. This also works after the job has ended."""
    client = client_of(store, job)
    found = client.timeline().rescales
    if as_json:
        print_json(found)
        return
    if not found:
        how = f"weir rescale {client.name} --parallelism N{store_hint(store)}"
        console.print(f"{client.name} was never rescaled; {how} does it", soft_wrap=True)
        return
    table = Rows("when", "state", "slots", "pause", "epoch", "change", wrap="change", room=24)
    for record in found:
        table.add(
            instant(record.started_at_ms),
            record.state.value,
            f"{record.slots_before} → {record.slots_after}",
            _pause(record),
            str(record.epoch or "–"),
            _change(record),
        )
    console.print(table)
    for record in found:
        if record.reason:
            said = f"{instant(record.started_at_ms)} {record.state.value}: {record.reason}"
            console.print(escape(said), highlight=False)


def _operators(pairs: list[str] | None) -> dict[str, int]:
    result: dict[str, int] = {}
    for pair in pairs or []:
        uid, equals, number = pair.rpartition("=")
        if not equals or not uid or not number.isascii() or not number.isdecimal():
            raise WeirError(f"--operator {pair!r}: write UID=N, as in --operator pv=3")
        result[uid] = int(number)
    return result


def _pause(record: RescaleRecord) -> str:
    if record.pause_ms is None and record.state is RescaleState.COMPLETED:
        return "not known (no record has come since)"
    return span(record.pause_ms)


def _change(record: RescaleRecord) -> str:
    """Says what changed, grouped: `views, pv: 2 → 3`."""
    groups: dict[str, list[str]] = {}
    for uid in dict.fromkeys([*record.before, *record.after]):
        old, new = record.before.get(uid), record.after.get(uid)
        if old != new:
            groups.setdefault(f"{old} → {new}", []).append(uid)
    return escape("; ".join(f"{', '.join(uids)}: {change}" for change, uids in groups.items()))


def _sizes(parallelism: dict[str, int]) -> str:
    numbers = sorted(set(parallelism.values()))
    return f"parallelism {', '.join(map(str, numbers))}"
