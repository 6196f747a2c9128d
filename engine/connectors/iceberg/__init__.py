"""Iceberg tables: one commit per epoch, once, by a number in the table's own metadata (docs/guide/lake-tables.md).

sink.py       `IcebergSink`: what a job writes to
committer.py  `IcebergCommitter`: publishes epochs
"""

from engine.connectors.iceberg.sink import IcebergSink

__all__ = ["IcebergSink"]
