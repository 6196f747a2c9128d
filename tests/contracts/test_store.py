"""The contract of `Store` in `engine/core/ports.py`, sentence by sentence, for every store that the engine runs on.

Topology: a directory on a real file system, a real MinIO server, the store in memory, the fake of the unit tests, the
simulator's store.
Faults: a crash of the host. For the directory it is played by what was synced: a file survives if its content was
fsynced and every name on its path was in a directory when that directory was fsynced.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.core.errors import StoreError
from engine.core.ports import Store
from engine.protocol.epoch_records import Created
from engine.store.directory import DirectoryStore
from engine.store.memory import MemoryStore
from engine.store.s3 import S3Store
from tests import fakes
from tests.servers.minio import MinioServer
from tests.simulation.store import SimStore, StoreFaults, StoreView
from tests.simulation.world import Process, World


class SyncedDisk:
    """Remembers what was fsynced below a directory, and forgets the rest when the host crashes."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._files: set[int] = set()
        self._names: dict[Path, set[str]] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._synced)

    def _synced(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            self._names[path] = set(os.listdir(path))
        else:
            self._files.add(os.fstat(descriptor).st_ino)
        self._fsync(descriptor)

    def crash(self) -> None:
        for path in [path for path in self._root.rglob("*") if path.is_file()]:
            parts = [path, *path.parents][: len(path.relative_to(self._root).parts)]
            named = all(part.name in self._names.get(part.parent, ()) for part in parts)
            if not named or path.stat().st_ino not in self._files:
                path.unlink()


@dataclass
class Tried:
    store: Store
    crash: Callable[[], None] | None = None
    """Crashes the host; None: the store does not outlive its process."""


@pytest.fixture(params=["directory", "minio", "memory", "fake", "simulated"])
def tried(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tried]:
    match request.param:
        case "minio":
            server: MinioServer = request.getfixturevalue("minio_server")
            server.use(monkeypatch)
            yield Tried(S3Store(f"s3://weir/{tmp_path.name}"))
        case "directory":
            root = tmp_path / "store"
            disk = SyncedDisk(root, monkeypatch)
            yield Tried(DirectoryStore(root), disk.crash)
        case "memory":
            yield Tried(MemoryStore())
        case "fake":
            yield Tried(fakes.MemoryStore())
        case _:
            world = World(0)
            simulated = SimStore(world, StoreFaults())
            yield Tried(StoreView(simulated, Process(world, "writer")), simulated.host_crashed)


@pytest.fixture
def store(tried: Tried) -> Store:
    return tried.store


def test_write_creates_and_replaces_a_file_and_makes_its_directories(store: Store) -> None:
    store.write("a/b/c", b"one")
    store.write("a/b/c", b"two")
    assert store.read("a/b/c") == b"two"


def test_create_makes_a_file_only_if_there_is_none(store: Store) -> None:
    assert store.create("log/1", b"mine") is Created.CREATED
    assert store.create("log/1", b"yours") is Created.EXISTS
    assert store.read("log/1") == b"mine"


def test_create_answers_exists_to_the_same_bytes_too(store: Store) -> None:
    assert store.create("log/1", b"mine") is Created.CREATED
    assert store.create("log/1", b"mine") is Created.EXISTS


def test_create_does_not_replace_a_file_that_was_written(store: Store) -> None:
    store.write("log/1", b"written")
    assert store.create("log/1", b"created") is Created.EXISTS
    assert store.read("log/1") == b"written"


def test_a_created_file_is_the_only_one_that_is_listed(store: Store) -> None:
    store.create("log/1", b"x")
    assert store.list("log") == ["log/1"]


@pytest.mark.parametrize("path", ["a", "a/b", "dir", "file/below"])
def test_read_says_that_there_is_no_file_of_this_name(store: Store, path: str) -> None:
    store.write("dir/x", b"")
    store.write("file", b"")
    with pytest.raises(FileNotFoundError):
        store.read(path)
    assert store.read_all([path]) == [None]
    assert store.sizes([path]) == [None]


def test_files_are_read_together_in_the_order_in_which_they_were_asked_for(store: Store) -> None:
    store.write("a/b", b"three")
    store.create("a/c", b"")
    assert store.read_all(["a/c", "a/b", "a/d", "a/b"]) == [b"", b"three", None, b"three"]
    assert store.below("a").read_all(["b"]) == [b"three"]
    assert store.read_all([]) == []


def test_sizes_are_the_numbers_of_bytes_of_files_in_the_order_in_which_they_were_asked_for(store: Store) -> None:
    store.write("a/b", b"four")
    store.write("a/b", b"three")
    store.create("a/c", b"")
    assert store.sizes(["a/c", "a/b", "a/d", "a/b"]) == [0, 5, None, 5]
    assert store.below("a").sizes(["b"]) == [5]
    assert store.sizes([]) == []


def test_what_is_no_path_is_refused_among_others(store: Store) -> None:
    with pytest.raises(StoreError):
        store.sizes(["a/b", "../b"])
    with pytest.raises(StoreError):
        store.read_all(["a/b", "../b"])


def test_list_is_sorted_and_holds_all_files_below_a_directory(store: Store) -> None:
    for path in ("j/b/2", "j/a/1", "j/c", "jj/d", "other/e"):
        store.write(path, b"")
    assert store.list("j") == ["j/a/1", "j/b/2", "j/c"]
    assert store.list("j/a") == ["j/a/1"]


def test_the_empty_prefix_lists_the_whole_store(store: Store) -> None:
    store.write("a/1", b"")
    store.write("b", b"")
    assert store.list("") == ["a/1", "b"]


@pytest.mark.parametrize("prefix", ["nothing", "j/nothing", "j/file", "j/file/below", "j/fi", ""])
def test_list_is_empty_where_there_is_no_such_directory(store: Store, prefix: str) -> None:
    if prefix:
        store.write("j/file", b"")
    assert store.list(prefix) == []


def test_list_leaves_out_files_whose_names_begin_with_a_dot(store: Store) -> None:
    store.write("j/.hidden", b"")
    store.write("j/a/.also", b"")
    store.write("j/.folder/shown", b"")
    assert store.list("j") == ["j/.folder/shown"]
    assert store.read("j/.hidden") == b""


def test_delete_removes_a_file(store: Store) -> None:
    store.write("j/a", b"")
    store.write("j/ab", b"")
    store.delete("j/a")
    assert store.list("j") == ["j/ab"]


def test_delete_removes_a_directory_with_its_dot_files(store: Store) -> None:
    for path in ("j/a/1", "j/a/b/2", "j/a/.hidden", "j/c"):
        store.write(path, b"")
    store.delete("j/a")
    assert store.list("") == ["j/c"]
    for path in ("j/a/1", "j/a/b/2", "j/a/.hidden"):
        with pytest.raises(FileNotFoundError):
            store.read(path)


@pytest.mark.parametrize("path", ["nothing", "nothing/at/all", "file/below"])
def test_delete_does_nothing_if_there_is_nothing(store: Store, path: str) -> None:
    store.write("file", b"x")
    store.delete(path)
    assert store.list("") == ["file"]


def test_a_deleted_file_can_be_created_again(store: Store) -> None:
    store.create("log/1", b"old")
    store.delete("log/1")
    assert store.create("log/1", b"new") is Created.CREATED
    assert store.read("log/1") == b"new"


def test_sync_of_an_absent_file_is_an_error_of_the_store(store: Store) -> None:
    store.write("a/there", b"")
    with pytest.raises(StoreError):
        store.sync(["a/there", "a/absent"])


@pytest.mark.parametrize("path", ["/absolute", "..", "a/../b", "../a", ".", "a/./b", "a//b", "a/", "/"])
def test_a_path_that_is_not_made_of_plain_names_is_refused(store: Store, path: str) -> None:
    uses: list[Callable[[], object]] = [
        lambda: store.write(path, b"x"),
        lambda: store.create(path, b"x"),
        lambda: store.read(path),
        lambda: store.list(path),
        lambda: store.delete(path),
        lambda: store.sync([path]),
    ]
    for use in uses:
        with pytest.raises(StoreError):
            use()


def test_a_file_is_copied_between_parts_of_a_store_or_the_store_says_that_it_can_not(store: Store) -> None:
    store.write("job/state", b"state")
    part, saved = store.below("job"), store.below("saved")
    if not saved.copy_from("x/copy", part, "state"):
        assert store.list("saved") == []
        return
    saved.sync(["x/copy"])
    assert store.read("saved/x/copy") == b"state"
    assert saved.copy_from("x/copy", part, "state"), "a copy may be repeated"
    store.write("job/state", b"newer")
    assert store.read("saved/x/copy") == b"state", "a write of the original left the copy as it was"
    assert saved.copy_from("x/copy", part, "state")
    store.write("saved/x/copy", b"other")
    assert store.read("job/state") == b"newer", "a write of the copy left the original as it was"
    assert saved.copy_from("x/copy", part, "state")
    store.delete("job")
    assert store.read("saved/x/copy") == b"newer", "a delete of the original left the copy as it was"


def test_a_file_that_is_not_there_is_not_copied(store: Store) -> None:
    store.write("kept", b"")
    with contextlib.suppress(FileNotFoundError):
        assert not store.copy_from("copy", store, "absent")
    assert store.list("") == ["kept"]


def test_files_of_different_kinds_of_store_are_not_copied_by_themselves(store: Store) -> None:
    source = MemoryStore()
    source.write("a", b"")
    assert not store.copy_from("a", source, "a")
    assert store.list("") == []


def test_every_file_has_a_uri_of_its_own(store: Store) -> None:
    assert store.uri("t/a b") != store.uri("t/a_b")
    assert ":" in store.uri("t/a b")


# --- what a crash of the host leaves ---


def _crash(tried: Tried) -> Store:
    if tried.crash is None:
        pytest.skip("this store does not outlive its process")
    tried.crash()
    return tried.store


def _absent(store: Store, path: str) -> bool:
    try:
        store.read(path)
    except FileNotFoundError:
        return True
    return False


def test_synced_files_survive_a_crash_of_the_host(tried: Tried) -> None:
    tried.store.write("job/gen/chk/a", b"1")
    tried.store.write("job/gen/b", b"2")
    tried.store.sync(["job/gen/chk/a", "job/gen/b"])
    store = _crash(tried)
    assert (store.read("job/gen/chk/a"), store.read("job/gen/b")) == (b"1", b"2")


def test_a_created_file_survives_a_crash_of_the_host(tried: Tried) -> None:
    assert tried.store.create("job/log/1", b"x") is Created.CREATED
    assert _crash(tried).read("job/log/1") == b"x"


def test_a_file_that_was_only_written_may_be_gone_after_a_crash_of_the_host(tried: Tried) -> None:
    """Shows that these tests can fail. Ten files: each may survive."""
    for number in range(10):
        tried.store.write(f"job/{number}", b"x")
    store = _crash(tried)
    assert any(_absent(store, f"job/{number}") for number in range(10))


def test_a_store_below_another_holds_the_same_files_under_shorter_paths(store: Store) -> None:
    below = store.below("a/b")
    below.write("c/1", b"one")
    assert below.create("2", b"two") is Created.CREATED
    below.sync(["c/1", "2"])
    store.write("a/bc", b"beside")
    assert (store.read("a/b/c/1"), below.read("2"), below.list(""), below.list("c")) == (
        b"one",
        b"two",
        ["2", "c/1"],
        ["c/1"],
    )
    assert below.uri("2") == store.uri("a/b/2")
    assert below.below("c").read("1") == b"one"
    below.delete("c")
    assert store.list("a") == ["a/b/2", "a/bc"]


@pytest.mark.parametrize("path", ["..", "/x", "a/../../b", ""])
def test_a_store_below_another_can_not_be_left(store: Store, path: str) -> None:
    with pytest.raises(StoreError):
        store.below("a").read(path)
    with pytest.raises(StoreError):
        store.below(path)
