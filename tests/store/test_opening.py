"""A store is opened by its address, and its address is the same for every process of a job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.core.errors import StoreError, WeirError
from engine.store.bucket import Bucket, Endpoint
from engine.store.directory import DirectoryStore
from engine.store.opening import address_of, open_store, shown
from engine.store.s3 import S3Store


@pytest.mark.parametrize("store", ["s3://lake/a/b", "s3://lake/a/b/"])
def test_the_address_of_a_bucket_has_one_form(store: str) -> None:
    assert address_of(store) == "s3://lake/a/b"
    assert isinstance(open_store(store), S3Store)


def test_the_address_of_a_directory_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert address_of("store") == address_of(Path("store")) == str(tmp_path / "store")
    assert isinstance(open_store("store"), DirectoryStore)


@pytest.mark.parametrize(
    "store",
    ["gs://lake/a", "s3a://lake/a", "http://host/lake", "s3:/lake/a", "S3://lake/a", "s3://", "s3://key:secret@lake/a"],
)
def test_what_is_no_address_of_a_store_is_refused_and_credentials_in_it_are_not_repeated(store: str) -> None:
    with pytest.raises(WeirError, match="s3://bucket/prefix") as refused:
        address_of(store)
    assert "secret" not in str(refused.value)


def test_a_table_is_shown_as_spark_wants_it(tmp_path: Path) -> None:
    assert shown(open_store(tmp_path / "my store"), "job/tables/t") == f"{tmp_path}/my store/job/tables/t"
    assert shown(open_store("s3://lake/my store"), "job/tables/t") == "s3a://lake/my store/job/tables/t"


def test_a_bucket_is_opened_without_credentials_and_its_first_use_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slot on a machine without credentials must be able to tell its JobMaster."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    store = open_store("s3://lake/a")
    with pytest.raises(StoreError, match="the environment lacks AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        store.read("job/run/nonce-1")


def test_the_endpoint_of_weir_wins_over_that_of_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://other:1")
    monkeypatch.setenv("WEIR_S3_ENDPOINT", "https://mine:2")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    assert Endpoint.from_environment() == Endpoint("mine:2", True, "eu-central-1")


def test_an_endpoint_with_credentials_in_it_is_refused_without_repeating_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_S3_ENDPOINT", "https://key:secret@mine:2")
    with pytest.raises(StoreError, match="WEIR_S3_ENDPOINT must be an address") as refused:
        Endpoint.from_environment()
    assert "secret" not in str(refused.value)


def test_a_bucket_without_a_prefix_is_the_whole_bucket() -> None:
    assert (Bucket.parse("s3://lake").key("a"), str(Bucket.parse("s3://lake/"))) == ("a", "s3://lake")


def test_a_job_in_a_directory_loads_no_client_of_buckets() -> None:
    code = "import sys, engine.process.submit, engine.spark.slot_process; print('minio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
