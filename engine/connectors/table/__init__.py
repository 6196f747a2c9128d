"""The Weir table: Parquet files that are published by whole epochs; plain `spark.read.parquet(table)` sees only those.

sink.py       `TableSink`: what a job writes to
committer.py  `TableCommitter`: publishes epochs, and owns the table
log.py        `TableLog`: the records, in the format of Spark's file-sink log
folds.py      `FoldLog`: files that replace many smaller ones, and the epochs of their rows
planning.py   decides which files are folded
folder.py     `TableFolder`: folds, and deletes what is over, in the background
reading.py    reads a table without Spark
"""

from engine.connectors.table.committer import TableCommitter
from engine.connectors.table.reading import EpochRows, epoch_rows, is_table, published, read_table, tables_of
from engine.connectors.table.sink import TableSink

__all__ = ["EpochRows", "TableCommitter", "TableSink", "epoch_rows", "is_table", "published", "read_table", "tables_of"]
