"""A store in a bucket, beside the contract that all stores share (`tests/contracts/test_store.py`).

Topology: a real MinIO server on loopback, behind a proxy that breaks chosen requests.
Faults: lost and cut answers, errors of the server before and after the work, silence, a server that ignores conditions,
wrong credentials and addresses.
"""

from __future__ import annotations

import inspect
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import urllib3

from engine.core.errors import StoreError, WeirError
from engine.core.pieces import Pieces
from engine.protocol.epoch_records import Created
from engine.store.bucket import Endpoint
from engine.store.s3 import (
    ASKED_AT_ONCE,
    PART_BYTES,
    RETRIES,
    Bucket,
    S3Store,
    client_from_environment,
    pause_s,
)
from tests.servers.faulty import Fault, FaultyProxy, once, times
from tests.servers.minio import MinioServer


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


def test_a_create_beside_another_one_is_unknown_and_never_taken_for_the_other_s_success(
    store: S3Store, proxy: FaultyProxy
) -> None:
    """Amazon's S3 answers 409 while another conditional create is under way: that one may fail yet."""
    proxy.decide = once(Fault.CONFLICT, "PUT")
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


def test_a_read_is_repeated_as_often_as_a_write_and_no_more(store: S3Store, proxy: FaultyProxy) -> None:
    proxy.decide = times(99, Fault.LOSE_ANSWER, "GET")
    with pytest.raises(StoreError):
        store.read("state/a")
    assert len(proxy.requests) == RETRIES + 1


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LATER, Fault.LOSE_ANSWER])
@pytest.mark.parametrize("method", ["PUT", "GET", "POST"])
def test_pauses_between_repeated_requests_grow_have_a_bound_and_differ_by_chance(
    proxy: FaultyProxy, tmp_path: Path, fault: Fault, method: str
) -> None:
    """A server that asks for an hour is not obeyed: a checkpoint would wait for it."""
    paused: list[float] = []
    chances = [0.0, 0.5, 0.25, 0.75]
    drawn = iter(chances)
    store = S3Store(f"s3://weir/{tmp_path.name}", sleep=paused.append, chance=lambda: next(drawn))
    proxy.decide = times(99, fault, method)
    with pytest.raises(StoreError):
        match method:
            case "PUT":
                store.write("a", b"")
            case "GET":
                store.read("a")
            case _:
                store.delete("a")
    assert paused == pytest.approx([0.2, 0.4 * 0.75, 0.8 * 0.875, 1.6 * 0.625])
    assert next(drawn, None) is None and len(paused) == RETRIES


def test_a_pause_is_between_half_of_its_bound_and_its_bound_however_often_a_request_is_repeated() -> None:
    for repeats in (*range(10), 10_000):
        longest = [0.2, 0.4, 0.8, 1.6, 3.2, 5.0][min(repeats, 5)]
        assert (pause_s(repeats, 0.0), pause_s(repeats, 0.5)) == (longest, 0.75 * longest)
        assert longest / 2 < pause_s(repeats, 0.999) < longest


def test_stores_that_failed_together_do_not_come_back_together() -> None:
    chance = inspect.signature(S3Store).parameters["chance"].default
    assert len({pause_s(0, chance()) for _ in range(50)}) > 40, "slots that failed in one moment draw for themselves"


def test_a_file_that_the_server_does_not_delete_is_an_error_that_names_it(store: S3Store, proxy: FaultyProxy) -> None:
    store.write("state/a", b"data")
    proxy.decide = once(Fault.KEEP, "POST")
    with pytest.raises(StoreError, match=r"can't delete state/a in s3://weir/.*: AccessDenied"):
        store.delete("state/a")


def test_a_delete_leaves_files_alone_whose_names_begin_the_same(store: S3Store) -> None:
    for path in ("state/1/a", "state/10/a", "state/1.seal"):
        store.write(path, b"")
    store.delete("state/1")
    assert store.list("") == ["state/1.seal", "state/10/a"]


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
        S3Store(f"s3://weir/{tmp_path.name}", answer_s=0.3 if fault is Fault.SILENT else 60, retries=1).read("state/a")
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


# --- copies ---


def test_the_server_copies_between_prefixes_and_parts_of_stores(
    store: S3Store, proxy: FaultyProxy, tmp_path: Path
) -> None:
    other = S3Store(f"s3://weir/{tmp_path.name}-other/deep")
    other.write("from/a", b"data")
    proxy.requests.clear()
    assert store.copy_from("to/a", other, "from/a")
    assert store.copy_from("to/b", other.below("from"), "a")
    assert store.below("part").copy_from("c", other, "from/a")
    assert "GET" not in {method for method, _ in proxy.requests}, "no byte of it comes here"
    assert [store.read(path) for path in ("to/a", "to/b", "part/c")] == [b"data"] * 3
    proxy.requests.clear()
    store.sync(["to/a"])
    assert proxy.requests == [], "the server makes a copy durable before it answers"


def test_the_server_copies_between_buckets(store: S3Store, minio_server: MinioServer, tmp_path: Path) -> None:
    minio_server.client.make_bucket("elsewhere")
    other = S3Store(f"s3://elsewhere/{tmp_path.name}")
    other.write("a", b"data")
    store.copy_from("b", other, "a")
    other.copy_from("c", store, "b")
    assert (store.list(""), other.list(""), other.read("c")) == (["b"], ["a", "c"], b"data")


@pytest.mark.parametrize("part", [False, True])
def test_a_copy_of_a_file_that_is_not_there_says_so(store: S3Store, part: bool) -> None:
    """Retention may delete a file of a checkpoint while a rehearsal copies it: then a newer one is copied."""
    with pytest.raises(FileNotFoundError, match="from/a does not exist"):
        store.copy_from("to/a", store.below("from") if part else store, "a" if part else "from/a")


# --- large ---


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_large_file_is_sent_in_parts(store: S3Store, proxy: FaultyProxy, pieces: int) -> None:
    data = bytes(range(256)) * ((2 * PART_BYTES + 5 * 256) // 256)
    step = len(data) // pieces + 1
    store.write("state/large", Pieces(data[start : start + step] for start in range(0, len(data), step)))
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


def test_a_server_that_says_that_an_object_exists_and_replaces_it_is_refused(
    store: S3Store, proxy: FaultyProxy
) -> None:
    asked: list[str] = []

    def lie(method: str, address: str) -> Fault | None:
        asked.append(method)
        return Fault.LIE if asked.count("PUT") == 2 and method == "PUT" else None

    proxy.decide = lie
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
    paused: list[float] = []
    store = S3Store("s3://weir/x", sleep=paused.append)
    with pytest.raises(WeirError) as caught:
        store.check()
    assert said in str(caught.value)
    with pytest.raises(StoreError) as refused:
        store.create("a", b"")
    assert said in str(refused.value)
    assert [method for method, _ in proxy.requests] == ["PUT", "GET", "PUT"], "each answer is told at once"
    assert not paused


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
    ("environ", "address", "region"),
    [
        ({}, "https://s3.amazonaws.com", "us-east-1"),
        ({"AWS_ENDPOINT_URL": "http://a:1"}, "http://a:1", "us-east-1"),
        ({"AWS_ENDPOINT_URL": "http://a:1", "WEIR_S3_ENDPOINT": "https://b:2"}, "https://b:2", "us-east-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, "https://s3.amazonaws.com", "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-1", "AWS_REGION": "eu-north-1"}, "https://s3.amazonaws.com", "eu-north-1"),
    ],
)
def test_the_server_is_the_one_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], address: str, region: str
) -> None:
    for name in ("AWS_ENDPOINT_URL", "WEIR_S3_ENDPOINT", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", **environ}.items():
        monkeypatch.setenv(name, value)
    endpoint = Endpoint.from_environment()
    assert (str(endpoint), endpoint.region) == (address, region)
    signed = client_from_environment(urllib3.PoolManager()).presigned_get_object("lake", "a")
    assert signed.startswith(f"{address.partition('://')[0]}://") and f"%2F{region}%2Fs3" in signed


def test_a_path_may_hold_the_prefix_of_its_store_again() -> None:
    bucket = Bucket("lake", "weir")
    assert bucket.path(bucket.key("weir/tables/weir/a")) == "weir/tables/weir/a"


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


# --- sizes ---


class AtOnce:
    """A proxy's decision that breaks nothing: each request stays for a moment, and `most` were there at a time.

    The first ones stay until `together` are there, however late a busy machine sends them. Only requests that are sent
    one after the other wait in vain, once.
    """

    def __init__(self, method: str, together: int) -> None:
        self.most = 0
        self._method = method
        self._together = together
        self._in_vain = False
        self._now = 0
        self._changed = threading.Condition()

    def __call__(self, method: str, address: str) -> Fault | None:
        if method != self._method:
            return None
        with self._changed:
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            if not self._in_vain:
                self._in_vain = not self._changed.wait_for(lambda: self.most >= self._together or self._in_vain, 20)
        time.sleep(0.1)  # for more than there may be
        with self._changed:
            self._now -= 1
        return None


def test_sizes_of_many_files_are_asked_for_beside_each_other_and_within_a_bound(
    store: S3Store, proxy: FaultyProxy
) -> None:
    paths = [f"table/{number}" for number in range(2 * ASKED_AT_ONCE)]
    for number, path in enumerate(paths):
        store.write(path, b"x" * number)
    proxy.decide = looks = AtOnce("HEAD", together=4)
    assert store.sizes([*paths, "table/none"]) == [*range(len(paths)), None]
    assert 4 <= looks.most <= ASKED_AT_ONCE


def test_many_files_are_read_beside_each_other_and_within_a_bound(store: S3Store, proxy: FaultyProxy) -> None:
    paths = [f"log/{number}" for number in range(2 * ASKED_AT_ONCE)]
    for path in paths:
        store.write(path, path.encode())
    proxy.decide = reads = AtOnce("GET", together=4)
    assert store.read_all([*paths, "log/none"]) == [*(path.encode() for path in paths), None]
    assert 4 <= reads.most <= ASKED_AT_ONCE


def test_sizes_can_not_be_had_from_a_server_that_fails_for_one_of_the_files(proxy: FaultyProxy, tmp_path: Path) -> None:
    store = S3Store(f"s3://weir/{tmp_path.name}", retries=0)
    for path in ("table/1", "table/2", "table/3"):
        store.write(path, b"x")
    proxy.decide = once(Fault.REFUSE, "HEAD", "table/2")
    with pytest.raises(StoreError, match="can't look at table/2"):
        store.sizes(["table/1", "table/2", "table/3"])
    assert store.sizes(["table/1", "table/2", "table/3"]) == [1, 1, 1]
