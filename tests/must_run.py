"""`python -m tests.must_run FILE` fails unless certain tests ran and passed. `.ci/run` calls it after `make test`.

These tests need a real server. One that is skipped, or that nobody collects any more, would look like success.
`tests/conftest.py` writes the tests that passed to the file that WEIR_PASSED names.
"""

from __future__ import annotations

import sys
from pathlib import Path

MUST_RUN = {
    "tests/store/test_s3.py::": 49,
    "tests/contracts/test_store.py::": 38,
    "tests/host/test_starts.py::": 12,
    "tests/process/test_bucket_chores.py::": 5,
    "tests/cluster/test_s3.py::": 3,
    "tests/jobmaster/test_bucket_away.py::": 7,
    "tests/process/test_savepoints_in_buckets.py::": 7,
    "tests/cli/test_buckets.py::": 12,
    "tests/connectors/test_kafka_source.py::": 40,
    "tests/connectors/test_kafka_sink.py::": 13,
    "tests/connectors/test_kafka_sink_faults.py::": 7,
    "tests/cluster/test_kafka.py::": 1,
    "tests/connectors/test_postgres.py::": 88,
    "tests/cluster/test_outside.py::": 1,
    "tests/connectors/test_lakes_in_buckets.py::": 5,
}
"""The least number of tests of each file that have to pass."""
MINIO_ONLY = {"tests/contracts/test_store.py::": "minio"}
"""Of these files only the tests with this text in their name count."""


def missing(passed: set[str]) -> list[str]:
    """Returns a sentence for each file of which too few tests passed."""
    found = []
    for file, least in MUST_RUN.items():
        count = sum(name.startswith(file) and MINIO_ONLY.get(file, "") in name for name in passed)
        if count < least:
            found.append(f"{file.rstrip(':')}: {count} tests with a real server passed, at least {least} have to")
    return found


def main() -> None:
    said = missing(set(Path(sys.argv[1]).read_text().split("\n")))
    print("\n".join(said) or "all tests that need a real server ran")
    sys.exit(bool(said))


if __name__ == "__main__":
    main()
