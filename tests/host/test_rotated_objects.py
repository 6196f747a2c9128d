"""Lines in objects of a bucket: order, positions, rotation, and a bucket that fails."""

from __future__ import annotations

import pytest

from engine.core.errors import StoreError
from engine.host.rotated import BEGIN
from engine.host.rotated_objects import RotatedObjects
from engine.store.memory import MemoryStore

FOLDER = "job/history/events"


class Away(MemoryStore):
    away = False

    def write(self, path: str, data: bytes) -> None:
        if self.away:
            raise StoreError("the bucket is away")
        super().write(path, data)


@pytest.fixture
def store() -> Away:
    return Away()


def objects(store: MemoryStore, object_bytes: int = 40, kept: int = 100) -> RotatedObjects:
    return RotatedObjects(store, FOLDER, object_bytes, kept)


def written(store: MemoryStore, lines: range, **options: int) -> RotatedObjects:
    made = objects(store, **options)
    for number in lines:
        made.append(f"line {number:04d}".encode())
        made.flush()
    return made


def read(store: MemoryStore) -> list[int]:
    return [int(line[5:]) for line, _ in objects(store).after(BEGIN)]


def test_lines_of_many_objects_come_back_in_order(store: Away) -> None:
    written(store, range(50))
    assert len(store.list(FOLDER)) > 5
    assert read(store) == list(range(50))


def test_a_second_writer_goes_on_behind_the_first(store: Away) -> None:
    written(store, range(7))
    written(store, range(7, 20))
    assert read(store) == list(range(20))


def test_a_reader_goes_on_from_every_position_and_misses_nothing(store: Away) -> None:
    written(store, range(30))
    for number, (_, position) in enumerate(objects(store).after(BEGIN)):
        rest = [int(line[5:]) for line, _ in objects(store).after(position)]
        assert rest == list(range(number + 1, 30))


def test_a_reader_at_the_end_gets_only_what_is_appended_later(store: Away) -> None:
    made = written(store, range(3))
    *_, (_, end) = objects(store).after(BEGIN)
    assert list(objects(store).after(end)) == []
    made.append(b"line 0003")
    made.flush()
    assert [line for line, _ in objects(store).after(end)] == [b"line 0003"]


def test_nothing_is_written_before_a_flush_nor_without_a_new_line(store: Away) -> None:
    made = objects(store)
    made.flush()
    made.append(b"line 0000")
    assert store.files == {}
    made.flush()
    before = dict(store.files)
    made.flush()
    assert store.files == before


def test_a_flush_that_fails_loses_no_line(store: Away) -> None:
    made = written(store, range(3))
    store.away = True
    for number in range(3, 12):  # more than an object holds
        made.append(f"line {number:04d}".encode())
        with pytest.raises(StoreError):
            made.flush()
    store.away = False
    made.append(b"line 0012")
    made.flush()
    assert read(store) == list(range(13))


def test_the_oldest_objects_are_deleted_and_a_position_in_them_gives_all_that_is_left(store: Away) -> None:
    written(store, range(10))
    _, (_, old) = [*objects(store).after(BEGIN)][:2]
    written(store, range(10, 100), kept=5)
    assert len(store.list(FOLDER)) == 5
    left = read(store)
    assert left == list(range(left[0], 100)) and left[0] > 10
    assert [int(line[5:]) for line, _ in objects(store).after(old)] == left


def test_two_writers_that_take_the_same_number_overwrite_nothing(store: Away) -> None:
    one, two = objects(store), objects(store)
    one.append(b"line 0001")
    two.append(b"line 0002")
    one._path, two._path = one._next(), two._next()
    one.flush()
    two.flush()
    assert sorted(read(store)) == [1, 2]
