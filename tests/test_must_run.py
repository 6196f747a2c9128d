"""CI fails if tests that need a real server did not run."""

from __future__ import annotations

from pathlib import Path

from tests.must_run import MUST_RUN, missing

ROOT = Path(__file__).parents[1]


def test_every_file_whose_tests_must_run_exists_and_starts_a_server() -> None:
    """The fixture `proxy` of tests/servers/faulty.py starts it, too."""
    for file in MUST_RUN:
        text = (ROOT / file.rstrip(":")).read_text()
        servers = ("minio_server", "postgres_server", "proxy: FaultyProxy", "tests.servers.kafka")
        assert any(server in text for server in servers), file


def test_a_file_of_which_too_few_tests_passed_is_named() -> None:
    assert len(missing(set())) == len(MUST_RUN)
    passed = {f"{file}test_{number}[minio]" for file, least in MUST_RUN.items() for number in range(least)}
    assert missing(passed) == []
    (said,) = missing({name for name in passed if "cluster/test_s3" not in name})
    assert "tests/cluster/test_s3.py: 0 tests" in said


def test_tests_of_other_stores_do_not_count() -> None:
    passed = {f"{file}test_{number}[directory]" for file, least in MUST_RUN.items() for number in range(least)}
    (said,) = missing(passed)
    assert said.startswith("tests/contracts/test_store.py: 0 tests")
