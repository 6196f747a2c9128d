"""The SQL of the sinks, composed from names that PostgreSQL quotes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psycopg.sql import SQL, Composed, Identifier

EPOCHS = """
CREATE TABLE IF NOT EXISTS weir_epochs (
    job text NOT NULL, target text NOT NULL, epoch bigint NOT NULL, PRIMARY KEY (job, target)
)"""
"""The marker: the newest epoch of a job in a table, in the same database and the same transactions as its rows."""

NEWEST = "SELECT epoch FROM weir_epochs WHERE job = %s AND target = %s"

MARK = """
INSERT INTO weir_epochs AS marker (job, target, epoch) VALUES (%s, %s, %s)
ON CONFLICT (job, target) DO UPDATE SET epoch = excluded.epoch WHERE marker.epoch < excluded.epoch
RETURNING epoch"""
"""Gives a row if the epoch is new. Whoever marks the same row meanwhile waits here until this transaction ends."""

COLUMNS = """
SELECT a.attname, t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped"""

END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = %s AND usename = current_user AND datname = current_database() AND pid <> pg_backend_pid()"""

STAGED = Identifier("weir_rows")
ORDER = Identifier("weir_order")


def table_name(table: str) -> Identifier:
    """`table`: a name, or schema.name."""
    return Identifier(*table.split("."))


def copy(into: Identifier, columns: Sequence[str]) -> Composed:
    return SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(into, _list(columns))


def stage(table: Identifier, columns: Sequence[str]) -> list[Composed]:
    """Makes a table for the rows of one epoch, which goes with the transaction. It numbers the rows."""
    return [
        SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
            STAGED, _list(columns), table
        ),
        SQL("ALTER TABLE {} ADD COLUMN {} bigserial").format(STAGED, ORDER),
    ]


def upsert(table: Identifier, columns: Sequence[str], key: Sequence[str]) -> Composed:
    """Takes the last row of each key."""
    others = [name for name in columns if name not in key]
    then = SQL("UPDATE SET {}").format(
        SQL(", ").join(SQL("{} = excluded.{}").format(Identifier(name), Identifier(name)) for name in others)
    )
    return SQL(
        "INSERT INTO {} ({}) SELECT DISTINCT ON ({}) {} FROM {} ORDER BY {}, {} DESC ON CONFLICT ({}) DO {}"
    ).format(
        table,
        _list(columns),
        _list(key),
        _list(columns),
        STAGED,
        _list(key),
        ORDER,
        _list(key),
        then if others else SQL("NOTHING"),
    )


def _list(names: Sequence[str]) -> Composed:
    return SQL(", ").join(map(Identifier, names))


def lookup(table: Identifier, columns: Sequence[str], keys: Mapping[str, str]) -> Composed:
    """Reads the rows with any of the given keys. They come as one array for each column of the key, of its own type."""
    arrays = SQL(", ").join(SQL("%s::{}[]").format(Identifier(kind)) for kind in keys.values())
    return SQL("COPY (SELECT {} FROM {} WHERE ({}) IN (SELECT * FROM unnest({}))) TO STDOUT (FORMAT csv)").format(
        _list(columns), table, _list(list(keys)), arrays
    )
