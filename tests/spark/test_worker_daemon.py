"""The daemon of the slots' processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark


def test_the_daemon_imports_pyspark_from_files_though_spark_puts_its_zip_files_first() -> None:
    """A module in a zip file is compiled at each start, which cost each JobMaster most of a second."""
    zipped = sorted(map(str, Path(pyspark.__file__).parent.joinpath("python", "lib").glob("*.zip")))
    assert len(zipped) == 2  # pyspark and py4j, as PythonUtils.sparkPythonPath lists them
    code = "import engine.spark.worker_daemon, pyspark, py4j; print(pyspark.__file__, py4j.__file__)"
    path = os.pathsep.join([*zipped, *(path for path in sys.path if path)])
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True, text=True
    )
    assert ".zip" not in ran.stdout
