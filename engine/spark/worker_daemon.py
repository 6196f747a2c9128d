"""PySpark's worker daemon with the engine imported already, so that a replacement slot only has to be forked.

Spark puts its own Python code, as zip files, in front of the module path. Python compiles modules in a zip file at
each start, which doubles the time of the imports. So the zip files go to the end of the path: local Spark's workers can
import the JobMaster's pyspark, which is installed as files.
"""

import sys

_zipped = [path for path in sys.path if path.endswith(("pyspark.zip", "-src.zip"))]
sys.path[:] = [path for path in sys.path if path not in _zipped] + _zipped

import pyarrow.compute  # noqa: E402
import pyarrow.flight  # noqa: E402
import pyarrow.parquet  # noqa: E402, F401
import pyspark.daemon  # noqa: E402

import engine.spark.slot_process  # noqa: E402, F401

if __name__ == "__main__":
    pyspark.daemon.manager()
