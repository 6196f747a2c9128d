"""Every run of the tests is the same run: hypothesis takes its examples from the test itself, not from chance.

If WEIR_PASSED names a file, the tests that passed are written to it (see `tests/must_run.py`).
"""

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "weir", derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("weir")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    file = os.environ.get("WEIR_PASSED")
    if file and report.when == "call" and report.passed and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(file, "a") as passed:
            passed.write(f"{report.nodeid}\n")


pytest_plugins = [
    "tests.no_java",
    "tests.servers.minio",
    "tests.servers.faulty",
    "tests.servers.kafka",
    "tests.servers.postgres",
]
