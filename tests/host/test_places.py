"""Where the files of a job lie that belong to one machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.host.places import local_folder


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    monkeypatch.delenv("WEIR_S3_ENDPOINT", raising=False)
    monkeypatch.setenv("WEIR_STATE", str(tmp_path / "state"))


def test_a_directory_holds_the_files_of_its_jobs_itself(tmp_path: Path) -> None:
    assert local_folder(tmp_path) == tmp_path


def test_a_bucket_has_a_folder_of_this_machine_that_names_it(tmp_path: Path) -> None:
    folder = local_folder("s3://lake/team/a")
    assert folder.parent == tmp_path / "state"
    assert folder.name.startswith("s3-lake-team-a-")
    assert local_folder("s3://lake/team/a/") == folder


def test_two_buckets_never_share_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {
        local_folder(store) for store in ("s3://lake/a-b", "s3://lake/a/b", "s3://lake-a/b", f"s3://l/{'x' * 200}")
    }
    assert len(folders) == 4
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://other:9000")
    assert local_folder("s3://lake/a-b") not in folders, "another server may have a bucket of the same name"


def test_without_weir_state_it_is_the_state_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WEIR_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert local_folder("s3://lake").parent == tmp_path / "xdg" / "weir"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert local_folder("s3://lake").parent == tmp_path / "home" / ".local" / "state" / "weir"
