"""Goal: Spark runs Python workers on the Java that `find_java` finds."""

from __future__ import annotations

import json
import subprocess
import sys

from engine.cli.doctor import check_spark
from engine.spark.java import find_java


def test_spark_runs_python_workers_on_a_machine_without_java(no_java: dict[str, str]) -> None:
    program = (
        "import json, shutil\n"
        "from engine.cli.doctor import check_spark\n"
        "from engine.spark.java import find_java\n"
        "java = find_java(usual_folders=()); check = check_spark(java)\n"
        "print(json.dumps([shutil.which('java'), java.bundled, check.ok, check.detail]))"
    )

    answer = subprocess.run([sys.executable, "-c", program], env=no_java, capture_output=True, text=True, check=True)

    on_path, bundled, ok, detail = json.loads(answer.stdout)
    assert (on_path, bundled, ok) == (None, True, True), detail


def test_spark_runs_python_workers_on_the_java_that_was_found() -> None:
    check = check_spark(find_java())

    assert check.ok, check.detail
