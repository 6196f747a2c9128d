"""Copies of files between two directories: hard links where the file system makes them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from engine.core.errors import StoreError
from engine.store.directory import DirectoryStore


def test_a_copy_is_a_hard_link(tmp_path: Path) -> None:
    source, target = DirectoryStore(tmp_path / "job"), DirectoryStore(tmp_path / "saved")
    source.write("state", b"state")
    assert target.copy_from("state", source, "state")
    assert (tmp_path / "job/state").samefile(tmp_path / "saved/state")


@pytest.mark.parametrize("reason", [errno.EXDEV, errno.EMLINK, errno.EPERM])
def test_where_no_link_can_be_made_the_caller_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    store = DirectoryStore(tmp_path)
    store.write("state", b"state")
    monkeypatch.setattr(os, "link", refuse)
    assert not store.copy_from("copy", store, "state")
    assert store.list("") == ["state"]


def test_a_link_that_fails_otherwise_is_an_error_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = DirectoryStore(tmp_path)
    store.write("state", b"state")
    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(StoreError, match="No space left"):
        store.copy_from("copy", store, "state")
