"""Delta Lake tables: one commit per epoch, once, by a number in the table's own log (docs/guide/delta.md).

sink.py        `DeltaSink`: what a job writes to
committer.py   `DeltaCommitter`: publishes epochs
statistics.py  what the log says about the values of a file
"""

from engine.connectors.delta.sink import DeltaSink

__all__ = ["DeltaSink"]
