"""A store in a bucket, beside the contract that all stores share (`tests/contracts/test_store.py`).

Topology: a real MinIO server on loopback, behind a proxy that breaks chosen requests.
Faults: lost and cut answers, errors of the server before and after the work, silence, a server that ignores conditions,
wrong credentials and addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.core.errors import StoreError, WeirError
from engine.protocol.epoch_records import Created
from engine.store.s3 import PART_BYTES, RETRIES, Bucket, S3Store
from tests.servers.faulty import Fault, FaultyProxy, once, times
from tests.servers.minio import MinioServer


@pytest.fixture
def proxy(minio_server: MinioServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    minio_server.use(monkeypatch)
    faulty = FaultyProxy(minio_server.endpoint)
    with faulty.running() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        yield faulty


@pytest.fixture
def store(proxy: FaultyProxy, tmp_path: Path) -> S3Store:
    return S3Store(f"s3://weir/{tmp_path.name}")


# --- create ---


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.FAIL_AFTER])
def test_a_create_whose_answer_is_lost_is_unknown_and_then_exists(
    store: S3Store, proxy: FaultyProxy, fault: Fault
) -> None:
    proxy.decide = once(fault, "PUT")
    assert store.create("log/1", b"mine") is Created.UNKNOWN
    assert store.create("log/1", b"mine") is Created.EXISTS
    assert store.read("log/1") == b"mine"


def test_a_create_that_the_server_refuses_for_a_moment_is_unknown_and_then_created(
    store: S3Store, proxy: FaultyProxy
) -> None:
    proxy.decide = once(Fault.REFUSE, "PUT")
    assert store.create("log/1", b"mine") is Created.UNKNOWN
    assert store.create("log/1", b"mine") is Created.CREATED


def test_a_create_is_sent_once(store: S3Store, proxy: FaultyProxy) -> None:
    """A repeated request would answer EXISTS to its own success."""
    proxy.decide = times(9, Fault.LOSE_ANSWER, "PUT")
    store.create("log/1", b"mine")
    assert [method for method, _ in proxy.requests] == ["PUT"]


def test_a_create_without_an_answer_in_time_is_unknown(proxy: FaultyProxy, tmp_path: Path) -> None:
    proxy.decide = once(Fault.SILENT, "PUT")
    assert S3Store(f"s3://weir/{tmp_path.name}", answer_s=0.2).create("log/1", b"mine") is Created.UNKNOWN


def test_a_create_that_reaches_no_server_has_failed(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StoreError, match="no connection to the server"):
        S3Store("s3://weir/x").create("log/1", b"mine")


def test_one_of_many_writers_that_create_the_same_file_wins(store: S3Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        for record in range(10):
            path = f"log/{record}"
            data = [f"writer {writer}".encode() for writer in range(8)]
            outcomes = list(pool.map(lambda d, path=path: store.create(path, d), data))
            assert outcomes.count(Created.CREATED) == 1
            assert store.read(path) == data[outcomes.index(Created.CREATED)]


# --- everything else is repeated ---


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.FAIL_AFTER, Fault.LOSE_ANSWER])
def test_a_write_is_repeated(store: S3Store, proxy: FaultyProxy, fault: Fault) -> None:
    proxy.decide = once(fault, "PUT")
    store.write("state/a", b"data")
    assert store.read("state/a") == b"data"


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE_ANSWER, Fault.CUT_ANSWER])
def test_a_read_is_repeated(store: S3Store, proxy: FaultyProxy, fault: Fault) -> None:
    store.write("state/a", b"data" * 1000)
    proxy.decide = once(fault, "GET", "state/a")
    assert store.read("state/a") == b"data" * 1000


def test_a_list_and_a_delete_are_repeated(store: S3Store, proxy: FaultyProxy) -> None:
    store.write("state/a", b"")
    proxy.decide = once(Fault.LOSE_ANSWER, "GET")
    assert store.list("state") == ["state/a"]
    proxy.decide = once(Fault.REFUSE, "POST")
    store.delete("state")
    assert store.list("state") == []


def test_a_server_that_goes_on_failing_is_an_error_that_names_the_file(store: S3Store, proxy: FaultyProxy) -> None:
    proxy.decide = times(99, Fault.REFUSE, "PUT")
    with pytest.raises(StoreError, match="can't write state/a in s3://weir/"):
        store.write("state/a", b"data")
    assert len(proxy.requests) == RETRIES + 1


@pytest.mark.promise("H8")
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault.REFUSE, "the server in AWS_ENDPOINT_URL fails (503); look at its own log"),
        (Fault.FAIL_AFTER, "the server in AWS_ENDPOINT_URL fails (500); look at its own log"),
        (Fault.SILENT, "the server in AWS_ENDPOINT_URL did not answer (ReadTimeoutError): is it up, and reachable"),
    ],
)
def test_a_server_that_fails_or_goes_silent_is_told_with_what_to_look_at(
    proxy: FaultyProxy, tmp_path: Path, fault: Fault, says: str
) -> None:
    proxy.decide = times(99, fault, "GET")
    with pytest.raises(StoreError) as failed:
        S3Store(f"s3://weir/{tmp_path.name}", answer_s=0.3, retries=1).read("state/a")
    assert f"can't read state/a in s3://weir/{tmp_path.name}: {says}" in str(failed.value)


@pytest.mark.promise("H8")
def test_a_slow_server_is_waited_for_and_nothing_is_sent_twice(store: S3Store, proxy: FaultyProxy) -> None:
    proxy.decide = lambda method, address: Fault.SLOW
    assert store.create("log/1.json", b"first") is Created.CREATED
    assert store.create("log/1.json", b"second") is Created.EXISTS
    assert store.read("log/1.json") == b"first"
    assert [method for method, _ in proxy.requests] == ["PUT", "PUT", "GET"]


def test_a_server_that_goes_on_failing_never_looks_like_a_missing_file(store: S3Store, proxy: FaultyProxy) -> None:
    proxy.decide = times(99, Fault.REFUSE, "GET")
    with pytest.raises(StoreError):
        store.read("state/a")
    with pytest.raises(StoreError):
        store.list("state")


def test_a_file_that_was_just_written_is_synced_without_another_request(store: S3Store, proxy: FaultyProxy) -> None:
    """A checkpoint writes and syncs many small files: each request counts."""
    store.write("state/a", b"data")
    store.sync(["state/a"])
    assert [method for method, _ in proxy.requests] == ["PUT"]
    store.sync(["state/a"])
    assert [method for method, _ in proxy.requests] == ["PUT", "HEAD"], "it may have been deleted since"


@pytest.mark.parametrize("deleted", ["state/a", "state"])
def test_a_file_that_was_written_and_deleted_can_not_be_synced(store: S3Store, deleted: str) -> None:
    store.write("state/a", b"data")
    store.delete(deleted)
    with pytest.raises(StoreError):
        store.sync(["state/a"])


def test_the_directories_in_a_directory_are_listed_without_what_is_below_them(store: S3Store) -> None:
    for path in ("a/1", "a/b/2", "c/3", "d"):
        store.write(path, b"")
    assert (store.folders(""), store.folders("a"), store.folders("c"), store.folders("no")) == (
        ("a", "c"),
        ("b",),
        (),
        (),
    )


# --- large ---


def test_a_large_file_is_sent_in_parts(store: S3Store, proxy: FaultyProxy) -> None:
    data = bytes(range(256)) * ((2 * PART_BYTES + 5 * 256) // 256)
    store.write("state/large", data)
    assert store.read("state/large") == data
    assert len([1 for method, _ in proxy.requests if method == "PUT"]) == 3


def test_more_files_than_one_answer_lists_are_listed_and_deleted(store: S3Store) -> None:
    paths = [f"state/{number:04d}" for number in range(1_050)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: store.write(path, b""), paths))
    assert store.list("state") == paths
    store.delete("state")
    assert store.list("state") == []


# --- what is said at the start ---


def test_a_good_store_passes_its_check_and_keeps_nothing_of_it(store: S3Store) -> None:
    store.check()
    assert store.list("") == []


def test_a_server_that_ignores_conditions_is_refused(store: S3Store, proxy: FaultyProxy) -> None:
    proxy.decide = times(99, Fault.IGNORE_CONDITION, "PUT")
    with pytest.raises(WeirError, match="does not honour conditional writes"):
        store.check()


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.FAIL_AFTER, Fault.LOSE_ANSWER, Fault.SILENT])
def test_a_server_that_does_not_say_whether_it_created_the_probe_is_not_blamed_for_ignoring_conditions(
    proxy: FaultyProxy, tmp_path: Path, fault: Fault
) -> None:
    proxy.decide = times(99, fault, "PUT")
    with pytest.raises(WeirError, match="can't be the store: the server in AWS_ENDPOINT_URL fails, or does not answer"):
        S3Store(f"s3://weir/{tmp_path.name}", answer_s=0.5, retries=1).check()


def test_a_bucket_that_does_not_exist_is_named(proxy: FaultyProxy) -> None:
    with pytest.raises(WeirError, match="s3://nowhere/x: the bucket does not exist: create it"):
        S3Store("s3://nowhere/x").check()


def test_a_bucket_that_is_gone_is_an_error_of_the_store(proxy: FaultyProxy) -> None:
    for use in (lambda s: s.read("a"), lambda s: s.write("a", b""), lambda s: s.create("a", b"")):
        with pytest.raises(StoreError, match="the bucket does not exist"):
            use(S3Store("s3://nowhere/x"))


@pytest.mark.parametrize(
    ("name", "said"), [("AWS_ACCESS_KEY_ID", "access key in AWS_ACCESS_KEY_ID"), ("AWS_SECRET_ACCESS_KEY", "signature")]
)
def test_wrong_credentials_are_told_apart(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setenv(name, "CANARY-0123456789")
    with pytest.raises(WeirError) as caught:
        S3Store("s3://weir/x").check()
    assert said in str(caught.value)
    with pytest.raises(StoreError) as refused:
        S3Store("s3://weir/x").create("a", b"")
    assert said in str(refused.value)


@pytest.mark.parametrize("missing", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_missing_credentials_are_named(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.delenv(missing)
    with pytest.raises(WeirError, match=f"the environment lacks {missing}"):
        S3Store("s3://weir/x").list("")


@pytest.mark.parametrize("endpoint", ["localhost:9000", "ftp://x", "http://x/path"])
def test_an_endpoint_that_is_no_address_is_refused(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(WeirError, match="AWS_ENDPOINT_URL must be an address"):
        S3Store("s3://weir/x").list("")


def test_no_message_holds_a_credential_or_a_signature(
    proxy: FaultyProxy, minio_server: MinioServer, tmp_path: Path
) -> None:
    """Every request fails in every way; what is said, and what caused it, is searched for the canaries."""
    secret, key = minio_server.environ["AWS_SECRET_ACCESS_KEY"], minio_server.environ["AWS_ACCESS_KEY_ID"]
    store = S3Store(f"s3://weir/{tmp_path.name}", answer_s=0.05, retries=0)
    said = []
    for fault in (Fault.REFUSE, Fault.LOSE_ANSWER, Fault.SILENT):
        for method in ("GET", "PUT", "HEAD", "POST"):
            proxy.decide = times(99, fault, method)
            for use in (store.read, store.list, store.delete, lambda p: store.write(p, b""), lambda p: store.sync([p])):
                try:
                    use("a")
                except (StoreError, FileNotFoundError) as error:
                    said.append(f"{error!r} {error.__cause__!r} {error.__suppress_context__}")
    assert said
    for text in said:
        assert secret not in text and key not in text and "Signature" not in text
        assert text.endswith("True") or "FileNotFound" in text, "a traceback would show the client's own error"


# --- addresses ---


@pytest.mark.parametrize(
    ("url", "bucket"),
    [
        ("s3://lake", Bucket("lake", "")),
        ("s3://lake/", Bucket("lake", "")),
        ("s3://lake/weir/prod", Bucket("lake", "weir/prod")),
    ],
)
def test_an_address_names_bucket_and_prefix(url: str, bucket: Bucket) -> None:
    assert Bucket.parse(url) == bucket


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///x", "s4://x", "s3://key:secret@host/x", "s3://host:9000/x", "s3://a/../b", "s3://a/b?c=d"]
)
def test_a_wrong_address_is_refused_and_its_credentials_are_not_repeated(url: str) -> None:
    with pytest.raises((WeirError, StoreError)) as caught:
        Bucket.parse(url)
    assert "secret" not in str(caught.value)


def test_spark_reads_over_s3a(store: S3Store, tmp_path: Path) -> None:
    assert store.uri("t/a%b c") == f"s3a://weir/{tmp_path.name}/t/a%25b%20c"
