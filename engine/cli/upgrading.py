"""`weir upgrade`: shows what another version of a job would change, rehearses it, and switches to it."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.text import Text

from engine.cli.launching import Param, pairs
from engine.cli.shared import JobName, Store, client_of, console, errors, examples, print_raised
from engine.cli.tables import Rows
from engine.core.errors import WeirError
from engine.graph.upgrade_plan import Fate, UpgradePlan
from engine.host.launch import MasterLaunch
from engine.host.upgrade_record import UpgradeRecord
from engine.observe.client import JobClient
from engine.process import upgrading
from engine.process.judging import find_judge
from engine.process.upgrading import PATIENCE_S, NewVersion
from engine.protocol.upgrading import Phase

_COLOURS = {
    Fate.RESTORED: "green",
    Fate.NEW: "cyan",
    Fate.MIGRATED: "yellow",
    Fate.DROPPED: "magenta",
    Fate.REFUSED: "bold red",
}

_To = Annotated[
    str | None,
    typer.Option("--to", metavar="PATH", help="import path of the new version (default: the same, with changed code)"),
]
_Parallelism = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="parallelism of the new version (default: as it is)")
]
_AllowNonRestored = Annotated[
    bool,
    typer.Option(
        "--allow-non-restored-state", metavar="", help="drop state, positions and tables of operators that are gone"
    ),
]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", metavar="", help="only show what becomes of the state, and change nothing")
]
_Rehearse = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="only run the new version beside the old one for N checkpoints, and compare what they write",
    ),
]
_Timeout = Annotated[
    float,
    typer.Option(
        min=1,
        metavar="SECONDS",
        help="how long the new version may take to publish an epoch before the old one returns",
    ),
]
_Json = Annotated[bool, typer.Option("--json", metavar="", help="print JSON")]


def add_to(app: typer.Typer) -> None:
    app.command(
        "upgrade",
        epilog=examples(
            "weir upgrade pageviews --to assets.pageviews.job:job_v2 --dry-run",
            "weir upgrade pageviews --to assets.pageviews.job:job_v2 --rehearse 5",
            "weir upgrade pageviews --to assets.pageviews.job:job_v2",
            "weir upgrade pageviews          (changed code; or carries on an upgrade that was interrupted)",
        ),
    )(upgrade)


def upgrade(
    job: JobName,
    store: Store = ".weir",
    to: _To = None,
    param: Param = None,
    parallelism: _Parallelism = None,
    allow_non_restored_state: _AllowNonRestored = False,
    dry_run: _DryRun = False,
    rehearse: _Rehearse = None,
    timeout: _Timeout = PATIENCE_S,
    as_json: _Json = False,
) -> None:
    """Replace a running job by another version of it: stop it with a savepoint, and go on with the new code from there.

    If the new version fails before its first epoch, the old one goes on from the same savepoint, by itself. Exit
    codes: 0 done (or the rehearsal passed), 1 refused or gone back, 2 the rehearsal could not be judged.
    """
    client = client_of(store, job)
    version = NewVersion(to, pairs("--param", param), parallelism, allow_non_restored_state)
    if dry_run and rehearse is not None:
        raise WeirError("choose one of --dry-run and --rehearse")
    begun = upgrading.unfinished(client)
    if begun is not None and not dry_run and rehearse is None:
        _finish(client, upgrading.carry_on_begun(client, begun, to, _say(as_json), timeout), as_json)
        return
    launch = upgrading.new_launch(client, version)
    planned = upgrading.plan(client, launch)
    if dry_run:
        _show(planned, launch, as_json)
        raise typer.Exit(1 if planned.refused else 0)
    if planned.refused:
        _show(planned, launch, as_json)
        upgrading.check(planned, launch)
    if rehearse is not None:
        raise typer.Exit(find_judge()(client, launch, rehearse, _say(as_json)).show(as_json))
    _finish(client, upgrading.switch(client, launch, "cli", _say(as_json), timeout), as_json)


def _say(as_json: bool) -> upgrading.Say:
    shown = errors if as_json else console
    return lambda text: shown.print(f"  {escape(text)}", highlight=False, soft_wrap=True)


def _finish(client: JobClient, record: UpgradeRecord, as_json: bool) -> None:
    progress, said = record.progress, record.in_words(client.name)
    if as_json:
        print(msgspec.json.encode(record.status).decode())
    elif progress.phase is Phase.UPGRADED:
        console.print(f"[green]{escape(said)}[/], behind epoch {progress.cut}", highlight=False, soft_wrap=True)
        console.print(f"  the savepoint {record.savepoint} holds its state before", highlight=False, soft_wrap=True)
    if progress.phase is Phase.UPGRADED:
        return
    errors.print(f"[bold red]error:[/] {escape(said)}", highlight=False)
    print_raised(progress.raised)
    raise typer.Exit(1)


def _show(planned: UpgradePlan, launch: MasterLaunch, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(planned).decode())
        return
    table = Rows("operator", "kind", "state", "what becomes of it", wrap="what becomes of it", room=30)
    for row in planned.rows:
        what = f"{row.what}. What to do: {row.fix}" if row.fix else row.what
        table.add(row.uid, row.kind, Text(row.fate.value, style=_COLOURS[row.fate]), what)
    console.print(f"{planned.job}, from epoch {planned.epoch} to {launch.path}", highlight=False, soft_wrap=True)
    console.print(table)
    counted = [f"{planned.count(fate)} {fate.value}" for fate in Fate if planned.count(fate)]
    console.print(", ".join(counted), highlight=False)
