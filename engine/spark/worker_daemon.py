"""PySpark's worker daemon with the engine imported already, so that a replacement slot only has to be forked."""

import pyarrow.compute
import pyarrow.flight
import pyarrow.parquet  # noqa: F401
import pyspark.daemon

import engine.spark.slot_process  # noqa: F401

if __name__ == "__main__":
    pyspark.daemon.manager()
