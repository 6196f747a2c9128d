"""Modes of folders and files with a umask that takes nothing away, and stores that others can write to."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.connectors.table import TableSink
from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.host.folders import alone_in, check_store, others_can_write
from engine.host.launch import MasterLaunch
from engine.host.run_folder import RunFolder
from engine.store.directory import DirectoryStore

LAUNCH = MasterLaunch(path="p", name="job", max_slots=1, store="s")


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_whatever_the_umask_a_job_s_folder_is_private_and_nothing_can_be_written_by_others(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "store"
    check_store(root, "job", allow_shared=False)
    store, folder = DirectoryStore(root), RunFolder(root, "job")
    folder.prepare()
    folder.write_launch(LAUNCH)
    folder.want_running(LAUNCH, "test")
    TableSink("pv").committer(store, JobPaths("job")).claim("1d", 1)
    store.write("job/gen-0001/chk-0000001/1/state.arrow", b"")
    store.create("job/log/0000000001.json", b"")
    assert (mode(root), mode(root / "job"), mode(root / "job" / "run")) == (0o750, 0o700, 0o700)
    assert mode(root / "job" / "tables" / "pv") == 0o750
    assert mode(folder.launch_file) == mode(root / "job" / "desired.json") == 0o600
    open_to_others = [path for path in root.rglob("*") if mode(path) & 0o027]
    assert open_to_others == [] and len(list(root.rglob("*"))) > 10
    check_store(root, "job", allow_shared=False)


def test_a_table_at_an_absolute_path_can_be_read_by_the_group_and_by_nobody_else(tmp_path: Path) -> None:
    sink, store = TableSink(str(tmp_path / "lake" / "pv")), DirectoryStore(tmp_path / "store")
    sink.committer(store, JobPaths("job")).claim("1d", 1)
    assert mode(tmp_path / "lake" / "pv") == 0o750
    assert mode(tmp_path / "lake" / "pv" / "_spark_metadata" / "weir.json") == 0o640


@pytest.mark.parametrize("which", ["store", "job"])
def test_a_store_that_others_can_write_to_is_refused_with_the_reason_unless_it_is_allowed(
    tmp_path: Path, which: str
) -> None:
    place = tmp_path / "store" if which == "store" else tmp_path / "store" / "job"
    place.mkdir(parents=True)
    (tmp_path / "store").chmod(0o755)
    for open_mode in (0o777, 0o775):
        place.chmod(open_mode)
        with pytest.raises(
            WeirError, match=rf"{which} can be written by others \(.*mode {open_mode:04o}\).*chmod go-w"
        ):
            check_store(tmp_path / "store", "job", allow_shared=False)
        check_store(tmp_path / "store", "job", allow_shared=True)
        assert mode(place) == open_mode
    place.chmod(0o755)
    check_store(tmp_path / "store", "job", allow_shared=False)


def test_a_sticky_folder_keeps_others_from_replacing_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o1777)
    check_store(tmp_path / "store", "job", allow_shared=False)


def test_a_store_below_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    """As tried by another user: the store was renamed, and a store of that user's own put in its place."""
    store = tmp_path / "shared" / "deep" / "store"
    check_store(store, "job", allow_shared=False)
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(WeirError, match=r"shared can be written by others \(mode 0777\)"):
        check_store(store, "job", allow_shared=False)
    check_store(store, "job", allow_shared=True)
    (tmp_path / "shared").chmod(0o1777)
    check_store(store, "job", allow_shared=False)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another group")
def test_a_store_below_a_folder_that_a_group_can_write_to_is_refused_unless_the_user_is_alone_in_it(
    tmp_path: Path,
) -> None:
    """Many systems give each user a group of one, of the user's name, and a umask that lets it write."""
    store = tmp_path / "team" / "store"
    check_store(store, "job", allow_shared=False)
    (tmp_path / "team").chmod(0o775)
    check_store(store, "job", allow_shared=False)
    os.chown(tmp_path / "team", -1, 4711)
    why = r"team can be written by others \(its group 4711, mode 0775\).*chmod go-w .*--allow-shared-store"
    with pytest.raises(WeirError, match=why):
        check_store(store, "job", allow_shared=False)
    check_store(store, "job", allow_shared=True)
    (tmp_path / "team").chmod(0o1775)
    check_store(store, "job", allow_shared=False)


def test_a_user_is_alone_in_a_group_of_the_same_name_without_other_members(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {1: grp.struct_group(("ann", "x", 1, [])), 2: grp.struct_group(("ann", "x", 2, ["ann", "bob"]))}
    groups[3] = grp.struct_group(("team", "x", 3, []))
    ann = pwd.struct_passwd(("ann", "x", 7, 1, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {7: ann}[uid])
    monkeypatch.setattr(grp, "getgrgid", groups.__getitem__)
    assert [alone_in(gid, 7) for gid in (1, 2, 3, 4)] == [True, False, False, False]
    assert not alone_in(1, 8), "a user without a name"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make links of other users")
def test_a_store_behind_another_user_s_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    check_store(tmp_path / "link" / "store", "job", allow_shared=False)
    os.chown(tmp_path / "link", 4711, -1, follow_symlinks=False)
    with pytest.raises(WeirError, match="link belongs to another user"):
        check_store(tmp_path / "link" / "store", "job", allow_shared=False)


def test_a_store_behind_a_link_of_ours_is_as_safe_as_the_folders_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "shared" / "real").mkdir(parents=True)
    (tmp_path / "shared" / "real").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "shared" / "real")
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(WeirError, match=r"shared can be written by others"):
        check_store(tmp_path / "link" / "store", "job", allow_shared=False)


def test_a_folder_of_another_user_is_refused_and_one_of_root_is_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    owner = tmp_path.stat().st_uid
    assert others_can_write(tmp_path.stat(), owner) is None
    if owner:
        assert others_can_write(tmp_path.stat(), owner + 1) == f"belongs to another user (uid {owner})"
    else:
        assert others_can_write(tmp_path.stat(), 4711) is None
        os.chown(tmp_path, 4711, -1)
        assert others_can_write(tmp_path.stat(), 0) == "belongs to another user (uid 4711)"
