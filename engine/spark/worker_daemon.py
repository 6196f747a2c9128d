"""PySpark's worker daemon with the engine imported already: a replacement slot is a fork away, not an import away."""

import pyarrow.compute
import pyarrow.flight
import pyarrow.parquet  # noqa: F401
import pyspark.daemon

import engine.spark.slot_process  # noqa: F401

if __name__ == "__main__":
    pyspark.daemon.manager()
