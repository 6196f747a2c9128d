"""`PostgresTable`: a table of PostgreSQL that streams are joined with (`DataStream.join_lookup`)."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.csv as pcsv

from engine.connectors.extras import needs_extra
from engine.connectors.postgres.rows import fitting
from engine.core.ddl import parse_ddl
from engine.core.errors import JobError
from engine.core.lookups import LookupTable


class PostgresTable(LookupTable):
    """Reads rows by their keys. `schema`: the columns to read, with the keys, as in 'city string, country string'.

    `table` should have an index on the keys. For `dsn` see `PostgresSink`. Each question is a connection of its own.
    """

    def __init__(self, dsn: str, table: str, schema: pa.Schema | str) -> None:
        needs_extra("psycopg", "postgres", "PostgresTable")
        self._dsn = dsn
        self._table = table
        self.schema = parse_ddl(schema) if isinstance(schema, str) else schema
        for field in self.schema:
            if not fitting(field.type) or pa.types.is_binary(field.type):
                raise JobError(
                    f"PostgresTable {table!r} can't read the column {field.name} as {field.type}: declare it as string"
                )

    def fetch(self, keys: pa.RecordBatch) -> pa.Table:
        """Asks for all keys at once, and reads the answer as COPY writes it: null is nothing, and "" is a text."""
        from engine.connectors.postgres import statements
        from engine.connectors.postgres.session import READING, connected, place_of

        target = f"the Postgres table {self._table} of {place_of(self._dsn)}"
        table = statements.table_name(self._table)
        answer = io.BytesIO()
        with connected(self._dsn, target, "weir lookup", READING) as connection, connection.cursor() as cursor:
            types = dict(cursor.execute(statements.COLUMNS, (table.as_string(connection),)).fetchall())
            asking = statements.lookup(
                table, self.schema.names, {name: types.get(name, "text") for name in keys.schema.names}
            )
            with cursor.copy(asking, [column.to_pylist() for column in keys.columns]) as copy:
                for part in copy:
                    answer.write(part)
        if not answer.tell():
            return self.schema.empty_table()
        return pcsv.read_csv(
            pa.py_buffer(answer.getvalue()),
            read_options=pcsv.ReadOptions(column_names=self.schema.names, use_threads=False),
            parse_options=pcsv.ParseOptions(newlines_in_values=True),
            convert_options=pcsv.ConvertOptions(
                column_types=self.schema,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )
