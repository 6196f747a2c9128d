"""`weir state`: shows what a running job keeps for one key."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.cli.inspecting import AsJson, print_json
from engine.cli.shared import JobName, Store, client_of, console
from engine.cli.tables import Rows
from engine.snapshot.query import StateOfKey

Uid = Annotated[str, typer.Argument(metavar="UID", help="the uid of an operator with keys")]
Key = Annotated[list[str], typer.Argument(metavar="KEY...", help="the key: a value for each key column")]


def state(job: JobName, uid: Uid, key: Key, store: Store = ".weir", as_json: AsJson = False) -> None:
    """Show the state of one key in the newest epoch of a running job, with its timers.

    An epoch is what the job would go on from after a failure; what came later is not shown yet.
    """
    found = client_of(store, job).state(uid, key)
    if as_json:
        print_json(found)
    else:
        _show(found)


def _show(found: StateOfKey) -> None:
    key = ", ".join(f"{name} {value}" for name, value in found.key.items())
    if not found.states:
        console.print(f"{found.uid} keeps nothing for {key} in epoch {found.epoch}", highlight=False)
        return
    console.print(f"{found.uid}, {key}, epoch {found.epoch}", highlight=False)
    table = Rows("state", "value", wrap="value")
    for name, rows in found.states.items():
        for row in rows:
            table.add(name, _told(row))
    console.print(table)


def _told(row: dict[str, object]) -> str:
    """Returns one row of a state: its value, or column by column if there are several."""
    if len(row) == 1:
        return str(next(iter(row.values())))
    return ", ".join(f"{name.strip('_')} {value}" for name, value in row.items())
