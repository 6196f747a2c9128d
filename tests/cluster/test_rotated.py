"""Lines in bounded files: whole, in order, and nothing missed by who reads on."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cluster.history import History
from engine.cluster.rotated import BEGIN, Position, RotatedFile


def lines(file: RotatedFile, position: Position = BEGIN) -> list[bytes]:
    return [line for line, _ in file.after(position)]


def test_the_newest_lines_are_kept_in_a_bounded_number_of_files(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "log", file_bytes=100, files=3)
    for number in range(200):
        file.append(b"line %04d" % number)
    kept = lines(file)
    assert kept == [b"line %04d" % number for number in range(200 - len(kept), 200)]
    assert 20 <= len(kept) <= 30 and len(list(tmp_path.iterdir())) == 3


def test_who_reads_on_misses_nothing_when_the_file_gets_its_other_name(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "log", file_bytes=30, files=3)
    seen: list[bytes] = []
    position = BEGIN
    for number in range(40):
        file.append(b"line %04d" % number)
        if number % 3 == 0:
            new = list(file.after(position))
            seen += [line for line, _ in new]
            position = new[-1][1]
    assert seen == [b"line %04d" % number for number in range(40)]


def test_a_position_that_is_not_kept_any_more_begins_with_what_is(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "log", file_bytes=30, files=2)
    file.append(b"first")
    ((_, position),) = file.after(BEGIN)
    for number in range(40):
        file.append(b"line %04d" % number)
    assert lines(file, position) == lines(file) and lines(file)[-1] == b"line 0039"


@pytest.mark.promise("F3")
def test_a_line_that_a_crash_tore_takes_no_other_event_with_it(tmp_path: Path) -> None:
    history = History(tmp_path, "job")
    history.append({"kind": "claimed", "at_ms": 1})
    path = tmp_path / "job" / "history" / "events.jsonl"
    with path.open("ab") as file:
        file.write(b'{"kind": "trigg')
    assert [event["kind"] for event in history.events()] == ["claimed"], "it may still be being written"
    successor = History(tmp_path, "job")
    successor.append({"kind": "running", "at_ms": 2})
    assert [event["kind"] for event in successor.events()] == ["claimed", "running"]
