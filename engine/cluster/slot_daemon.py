"""PySpark's worker daemon with the engine imported already: a replacement slot is a fork away, not an import away."""

import pyarrow
import pyarrow.compute
import pyarrow.flight
import pyarrow.parquet
import pyspark.daemon

import engine.cluster.slot_main  # noqa: F401

if __name__ == "__main__":
    pyarrow.set_cpu_count(1)  # a slot has one task thread; kernels that spread over all cores would fight over them
    pyspark.daemon.manager()
