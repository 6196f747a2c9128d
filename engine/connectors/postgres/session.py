"""Connections to PostgreSQL, and what their errors mean: the server is away or full, or the job's rows do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from engine.core.errors import JobError, SchemaMismatch, StoreError

DEFAULTS = {"connect_timeout": "10", "tcp_user_timeout": "30000", "keepalives_idle": "10"}
"""What the job's own address says wins. A server that is away is noticed within half a minute."""
OPTIONS = (
    "-c synchronous_commit=on -c lock_timeout=30s -c idle_in_transaction_session_timeout=60s -c datestyle=ISO "
    "-c timezone=UTC"
)
"""A commit whose answer comes before the disk has it could be lost with the server, and nobody would repeat it."""
WRITING = (
    "{} has refused the rows: {}. Change the table so that they fit and start the job again, which writes them; or "
    "change the job"
)
READING = "{} can't be read: {}. Name the table, its columns and the keys as they are in the database"
_OUTSIDE = (psycopg.OperationalError, psycopg.errors.InternalError)


def place_of(dsn: str) -> str:
    """Returns an address without what must not be shown, for messages: 'orders at db.example'."""
    try:
        said = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:  # its text repeats the address, with what must not be shown
        raise JobError(
            "the address of a PostgreSQL database can't be read: write one such as 'host=db.example dbname=orders' or "
            "'postgresql://db.example/orders'"
        ) from None
    host = said.get("host") or said.get("hostaddr") or "localhost"
    return f"{said.get('dbname') or 'postgres'} at {host}{':' + str(said['port']) if said.get('port') else ''}"


@contextmanager
def connected(
    dsn: str, target: str, name: str, refusal: str = WRITING
) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Connects, and runs one transaction. `name` is how the server's list of sessions shows this one.

    `refusal` tells what a statement that the server does not take means.
    """
    own = conninfo_to_dict(dsn)
    settings: dict[str, Any] = {**DEFAULTS, **own, "options": f"{OPTIONS} {own.get('options') or ''}".strip()}
    try:
        with psycopg.connect(**{**settings, "application_name": name}) as connection:
            yield connection
    except _OUTSIDE as error:
        raise StoreError(
            f"{target}: {_line(error)}. It is tried again; look whether the server runs, has room and a free "
            "connection, and whether the credentials (PGUSER and PGPASSWORD, or ~/.pgpass) are right"
        ) from error
    except psycopg.Error as error:
        raise SchemaMismatch(refusal.format(target, _line(error))) from error


def _line(error: psycopg.Error) -> str:
    """Returns what the server said in one line, with the place in the rows if it named one."""
    said = " ".join(str(error).split())
    return said.rstrip(".")
