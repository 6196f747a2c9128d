"""PostgreSQL: rows by whole epochs, appended or upserted exactly once; and lookups (docs/guide/postgres.md).

sink.py       `PostgresSink` and `AutoCommitPostgresSink`: what a job writes to
lookup.py     `PostgresTable`: what a stream is joined with
rows.py       rows as COPY reads them, and whether they fit into the columns of a table
statements.py the SQL of a commit
committer.py  `PostgresCommitter`: one transaction per epoch, with the epoch's number
session.py    connections, and what their errors mean
"""

from engine.connectors.postgres.lookup import PostgresTable
from engine.connectors.postgres.sink import AutoCommitPostgresSink, PostgresSink

__all__ = ["AutoCommitPostgresSink", "PostgresSink", "PostgresTable"]
