"""`MemoryStore`: the plain store in memory keeps the same contract as a directory."""

from __future__ import annotations

import pytest

from engine.protocol.epoch_records import Created
from engine.store.memory import MemoryStore


def test_a_file_is_created_once_and_read_back() -> None:
    store = MemoryStore()
    assert store.create("job/a", b"1") is Created.CREATED
    assert store.create("job/a", b"2") is Created.EXISTS
    store.write("job/b/c", b"3")
    assert (store.read("job/a"), store.list("job"), store.list("jo")) == (b"1", ["job/a", "job/b/c"], [])


def test_a_folder_is_deleted_with_all_that_is_in_it() -> None:
    store = MemoryStore()
    store.write("job/b/c", b"3")
    store.write("job/bc", b"4")
    store.delete("job/b")
    assert store.list("job") == ["job/bc"]
    with pytest.raises(FileNotFoundError):
        store.read("job/b/c")
