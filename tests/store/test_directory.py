"""DirectoryStore on a real file system: create-if-absent under races, what is synced, listing and deleting."""

import errno
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from engine.core.errors import StoreError, SyncFailed, WeirError
from engine.core.pieces import Pieces
from engine.protocol.epoch_records import Created
from engine.store import directory
from engine.store.directory import DirectoryStore, check_directory


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were fsynced, in order."""
    paths: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (paths.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd))[1])
    return paths


def test_a_content_in_pieces_is_written_as_one_file(store: DirectoryStore) -> None:
    store.write("state/1", b"something longer than what comes now")
    store.write("state/1", Pieces([b"a", memoryview(b"xbcx")[1:3], b"", memoryview(np.arange(3, dtype=np.int64))]))
    assert store.read("state/1") == b"abc" + np.arange(3, dtype=np.int64).tobytes()


def test_a_create_leaves_no_temporary_file(store: DirectoryStore) -> None:
    assert store.create("log/1", b"mine") is Created.CREATED
    assert store.create("log/1", b"yours") is Created.EXISTS
    assert len(list((store.root / "log").iterdir())) == 1


@pytest.mark.promise("F2")
def test_of_eight_racing_threads_exactly_one_creates_and_its_bytes_are_there(store: DirectoryStore) -> None:
    start = Barrier(8)

    def race(writer: int, number: int) -> Created:
        start.wait()
        return store.create(f"log/{number}", f"writer {writer}".encode())

    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            outcomes = list(pool.map(lambda writer, n=number: race(writer, n), range(8)))
            assert sorted(o.value for o in outcomes) == ["created"] + ["exists"] * 7
            winner = outcomes.index(Created.CREATED)
            assert store.read(f"log/{number}") == f"writer {winner}".encode()


@pytest.mark.promise("F2")
def test_of_eight_racing_processes_exactly_one_creates(store: DirectoryStore) -> None:
    """Each process waits for its line on standard input, so that all create at the same moment."""
    program = textwrap.dedent(
        """
        import sys
        from engine.store.directory import DirectoryStore
        store, writer = DirectoryStore(sys.argv[1]), sys.argv[2]
        print("ready", flush=True)
        sys.stdin.readline()
        print(" ".join(store.create(f"log/{n}", writer.encode()).value for n in range(20)))
        """
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(store.root), str(writer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for writer in range(8)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate()[0].split() for process in processes]
    for number in range(20):
        of_number = [answer[number] for answer in answers]
        assert sorted(of_number) == ["created"] + ["exists"] * 7
        assert store.read(f"log/{number}") == str(of_number.index("created")).encode()


def test_sync_makes_files_and_the_names_of_new_directories_durable(store: DirectoryStore, synced: list[str]) -> None:
    store.write("job/gen/chk/a", b"1")
    store.write("job/gen/chk/b", b"2")
    store.sync(["job/gen/chk/a", "job/gen/chk/b"])
    root = str(store.root)
    assert synced[:2] == [f"{root}/job/gen/chk/a", f"{root}/job/gen/chk/b"]
    assert synced[2:] == [f"{root}/job/gen/chk", f"{root}/job/gen", f"{root}/job", root]


def test_a_created_file_was_synced_before_its_name_and_its_directory_after(
    store: DirectoryStore, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link
    monkeypatch.setattr(os, "link", lambda a, b: (synced.append("link"), real(a, b))[1])
    store.create("log/1", b"x")
    at = synced.index("link")
    assert Path(synced[at - 1]).name.startswith(".1.")
    assert synced[at + 1] == f"{store.root}/log"


def test_the_directory_that_a_create_had_to_make_is_durable_too(store: DirectoryStore, synced: list[str]) -> None:
    store.create("job/log/1", b"x")
    assert f"{store.root}/job" in synced
    assert str(store.root) in synced


def test_a_file_that_exists_is_durable_before_anyone_is_told_so(
    store: DirectoryStore, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link was made but its answer lost, so nobody has synced the directory; the repeated create finds the file."""
    real = os.link

    def link_and_lose_the_answer(a: Path, b: Path) -> None:
        real(a, b)
        raise OSError("stale file handle")

    monkeypatch.setattr(os, "link", link_and_lose_the_answer)
    assert store.create("log/1", b"x") is Created.UNKNOWN
    monkeypatch.setattr(os, "link", real)
    synced.clear()
    assert store.create("log/1", b"x") is Created.EXISTS
    assert f"{store.root}/log" in synced


def test_what_a_process_left_that_was_killed_while_it_created_a_file_goes_with_the_first_create_of_another(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A young one may be that of a process that is about to make its link; a user's own hidden file stays."""

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    folder = store.root / "log"
    with monkeypatch.context() as dying:
        dying.setattr(os, "link", killed)
        dying.setattr(Path, "unlink", killed)
        for number in (1, 2):
            with pytest.raises(KeyboardInterrupt):
                store.create(f"log/{number}", b"x")
    old, young = sorted(folder.iterdir())
    (folder / ".notes").write_text("mine")
    for path in (old, folder / ".notes"):
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)
    successor = DirectoryStore(store.root)
    assert successor.create("log/1", b"y") is Created.CREATED
    assert sorted(path.name for path in folder.iterdir()) == sorted([young.name, ".notes", "1"])


def test_a_process_that_finds_its_file_swept_away_does_not_know_and_creates_it_again(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def sleeps(temporary: Path, target: Path) -> None:
        Path(temporary).unlink()
        real(temporary, target)

    monkeypatch.setattr(os, "link", sleeps)
    assert store.create("log/1", b"x") is Created.UNKNOWN
    monkeypatch.setattr(os, "link", real)
    assert store.create("log/1", b"x") is Created.CREATED


def test_a_link_whose_answer_is_lost_is_unknown(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise OSError("no answer")

    monkeypatch.setattr(os, "link", lost)
    assert store.create("log/1", b"x") is Created.UNKNOWN
    assert store.list("log") == []


def test_a_failed_fsync_is_told_apart_from_other_failures(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("a", b"1")

    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(SyncFailed, match=r"fsync of .*/a failed: Input/output error"):
        store.sync(["a"])


def test_a_write_that_fails_names_the_file(store: DirectoryStore) -> None:
    store.write("a", b"1")
    with pytest.raises(StoreError, match=r"can't write .*/a/b: "):
        store.write("a/b", b"2")


@pytest.mark.promise("D5")
@pytest.mark.parametrize("how", ["write", "create", "copy"])
def test_a_folder_that_somebody_removes_while_it_is_empty_is_made_again(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The folder of a savepoint that has failed is removed while the next savepoint of this name begins."""
    store.write("gen/state", b"state")
    made: list[Path] = []

    def removed(folder: Path, within: Path | None = None) -> None:
        real(folder, within)
        if made.append(folder) or len(made) == 1:
            folder.rmdir()

    real = directory.make_folder
    monkeypatch.setattr(directory, "make_folder", removed)
    match how:
        case "write":
            store.write("nightly/state", b"state")
        case "create":
            assert store.create("nightly/state", b"state") is Created.CREATED
        case _:
            assert store.copy_from("nightly/state", store, "gen/state")
    assert len(made) > 1 and store.read("nightly/state") == b"state"


def test_a_copy_of_a_file_that_is_gone_names_it(store: DirectoryStore) -> None:
    with pytest.raises(FileNotFoundError, match="gen/state does not exist"):
        store.copy_from("nightly/state", store, "gen/state")


def test_delete_leaves_no_empty_directories(store: DirectoryStore) -> None:
    for path in ("j/a/1", "j/a/b/2", "j/c"):
        store.write(path, b"")
    store.delete("j/a")
    assert os.listdir(store.root / "j") == ["c"]


def test_a_delete_that_fails_is_an_error_of_the_store(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write("j/a", b"")

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system", str(store.root / "j/a"))

    monkeypatch.setattr(Path, "unlink", read_only)
    for path in ("j/a", "j"):
        with pytest.raises(StoreError, match=r"can't delete .*/j/a: Read-only file system"):
            store.delete(path)


def test_the_uri_is_one_that_spark_reads(store: DirectoryStore) -> None:
    assert store.uri("a b/c") == f"file://{store.root}/a%20b/c"


@pytest.mark.parametrize("path", ["../outside/file", "/etc/hostname", "a/../../outside/file", "link/file"])
def test_nothing_outside_of_the_store_is_read_written_listed_or_deleted(tmp_path: Path, path: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"theirs")
    store = DirectoryStore(tmp_path / "store")
    store.write("a/file", b"ours")
    (tmp_path / "store" / "link").symlink_to(outside)
    for use in (
        lambda: store.read(path),
        lambda: store.write(path, b"x"),
        lambda: store.create(path, b"x"),
        lambda: store.list(path),
        lambda: store.delete(path),
        lambda: store.sync([path]),
    ):
        with pytest.raises(StoreError, match=r"leaves the store|is not a path in a store"):
            use()
    assert (outside / "file").read_bytes() == b"theirs"


def test_a_folder_is_deleted_without_following_links_out_of_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"theirs")
    store = DirectoryStore(tmp_path / "store")
    store.write("job/gen/file", b"ours")
    (tmp_path / "store" / "job" / "gen" / "link").symlink_to(outside)
    store.delete("job/gen")
    assert (outside / "file").read_bytes() == b"theirs" and not (tmp_path / "store" / "job" / "gen").exists()


def test_the_store_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    store = DirectoryStore(tmp_path / "store")
    store.write("a/file", b"x")
    assert store.read("a/file") == b"x" and store.list("") == ["a/file"]


@pytest.mark.promise("H8")
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
def test_a_store_without_rights_or_space_is_refused_before_anything_starts_and_says_what_to_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(WeirError) as refused:
        check_directory(tmp_path)
    said = f"the store {tmp_path} can't be written: {os.strerror(number)}; mend that, or choose another with --store"
    assert str(refused.value) == said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_is_refused_at_the_start_and_is_no_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    check_directory(tmp_path)

    def no_link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_link)
    with pytest.raises(WeirError, match=r"makes no hard links \(Operation not .*choose a store on a local disk"):
        check_directory(tmp_path)
    with pytest.raises(StoreError, match="makes no hard links"):
        DirectoryStore(tmp_path).create("log/1.json", b"{}")
    assert list(tmp_path.rglob("*.json")) == [] and list(tmp_path.glob(".probe*")) == []
