"""`weir logs`: what a job's code prints, logs and warns of, on all slots, and what its JobMaster decides."""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from engine.cli.shared import JobName, Store, client_of, errors, trouble_of
from engine.observe.client import JobClient
from engine.observe.logs import MASTER, LogLine, LogReader

FOLLOW_S = 0.3
TAIL_BYTES = 16_384


class LogLevel(StrEnum):
    """The levels of `logging`."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def logs(
    job: JobName,
    store: Store = ".weir",
    operator: Annotated[str | None, typer.Option(metavar="UID", help="show only lines of this operator's code")] = None,
    slot: Annotated[int | None, typer.Option(min=0, metavar="N", help="show only this slot")] = None,
    level: Annotated[
        LogLevel, typer.Option(case_sensitive=False, help="leave out what is below; what is printed counts as info")
    ] = LogLevel.DEBUG,
    tail: Annotated[int | None, typer.Option(min=0, metavar="N", help="begin with the last N lines")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="wait for new lines until the job has ended")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", metavar="", help="also show a line for each step of each checkpoint")
    ] = False,
) -> None:
    """Show what a job's code prints, logs and warns of, on all slots, and what its JobMaster decides."""
    client = client_of(store, job)
    client.timeline()  # raises an error if there is no such job
    reader = LogReader(client.folder.logs, slot, operator, logging.getLevelNamesMapping()[level.name])
    found, hidden = _read(reader, everything)
    _show(found if tail is None else deque(found, tail))
    shown = len(found)
    while follow:
        over = client.ended() is not None
        found, routine = _read(reader, everything)
        _show(found)
        shown, hidden = shown + len(found), hidden + routine
        if over:
            break
        time.sleep(FOLLOW_S)
    if not shown:
        errors.print(_why_none(client, reader, slot, operator, level, hidden), highlight=False)
    if trouble := trouble_of(client):
        errors.print(f"[yellow]{escape(trouble)}[/]\nThe end of {client.folder.log_file}:", highlight=False)
        errors.print(escape(_tail(client.folder.log_file)), highlight=False)


def _why_none(
    client: JobClient, reader: LogReader, slot: int | None, operator: str | None, level: LogLevel, hidden: int
) -> str:
    slots = reader.slots()
    if slot is not None and slot not in slots:
        return f"no line of slot {slot}; there are lines of slots: {', '.join(map(str, slots)) or 'none'}"
    seen = ", ".join(sorted(reader.operators - {""}))
    what = f" of operator {operator!r} (there are lines of: {seen or 'none'})" if operator else ""
    least = f" of level {level.value} or above" if level is not LogLevel.DEBUG else ""
    routine = f"; --all shows {hidden} lines about checkpoints" if hidden else ""
    return f"no line{what}{least} yet{routine}; what Spark itself prints is in {client.folder.log_file}"


_ROUTINE = re.compile(r"INFO weir\.master: (triggered|published|completed) under generation")


def _read(reader: LogReader, everything: bool) -> tuple[list[LogLine], int]:
    """Returns new lines, and how many it left out: those of checkpoints that went well."""
    found, hidden = [], 0
    for line in reader.read():
        if not everything and line.name == MASTER and _ROUTINE.match(line.text):
            hidden += 1
        else:
            found.append(line)
    return found, hidden


def _show(lines: Iterable[LogLine]) -> None:
    for line in lines:
        print(f"{line.at} {line.name:<7} {line.operator:<12} {line.text}", flush=True)


def _tail(path: Path, lines: int = 12) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"it can't be read: {error.strerror}"
