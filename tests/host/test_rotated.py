"""Lines in bounded files: whole, in order, and nothing missed by who reads on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine.host.launch import MasterLaunch
from engine.host.rotated import BEGIN, Position, RotatedFile, rotate_open
from engine.jobmaster import events
from engine.observe.history import History
from engine.process import child, supervisor
from engine.process.supervisor import Supervisor


def lines(file: RotatedFile, position: Position = BEGIN) -> list[bytes]:
    return [line for line, _ in file.after(position)]


def test_the_newest_lines_are_kept_in_a_bounded_number_of_files(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "log", file_bytes=100, files=3)
    for number in range(200):
        file.append(b"line %04d" % number)
    kept = lines(file)
    assert kept == [b"line %04d" % number for number in range(200 - len(kept), 200)]
    assert 20 <= len(kept) <= 30 and len(list(tmp_path.iterdir())) == 3


def test_lines_can_be_read_by_the_user_and_the_group_only(tmp_path: Path) -> None:
    """A line may hold the record at which a function raised."""
    RotatedFile(tmp_path / "history" / "events.jsonl", 100, 2).append(b"secret")
    found = [tmp_path / "history", tmp_path / "history" / "events.jsonl"]
    assert [path.stat().st_mode & 0o777 for path in found] == [0o750, 0o640]


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
    history.append(events.Claimed(at_ms=1))
    path = tmp_path / "job" / "history" / "events.jsonl"
    with path.open("ab") as file:
        file.write(b'{"kind": "trigg')
    assert [event.kind for event in history.events()] == ["claimed"], "it may still be being written"
    successor = History(tmp_path, "job")
    successor.append(events.Running("1.1", at_ms=2))
    assert [event.kind for event in successor.events()] == ["claimed", "running"]


def test_a_file_that_others_hold_open_is_bounded_and_they_go_on_writing_into_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("ab", buffering=0) as one, path.open("ab", buffering=0) as other:
        for number in range(200):
            (one if number % 2 else other).write(b"line %04d\n" % number)
            rotate_open(path, file_bytes=100, files=3)
    files = [tmp_path / "log.2", tmp_path / "log.1", path]
    kept = b"".join(file.read_bytes() for file in files).splitlines()
    assert kept == [b"line %04d" % number for number in range(200 - len(kept), 200)] and len(kept) >= 20
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_of_more_than_a_file_at_once_the_newest_stays(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old" * 100 + b"new" * 10)
    rotate_open(path, file_bytes=30, files=2)
    assert path.read_bytes() == b"" and (tmp_path / "log.1").read_bytes() == b"new" * 10


def test_what_a_jobmaster_prints_is_bounded_by_its_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a process that prints in the place of the JobMaster's."""
    monkeypatch.setattr(supervisor, "LOG_BYTES", 10_000)
    talks = [sys.executable, "-c", "import os\nfor n in range(5): os.write(1, b'%d' % n * 20_000); input()"]
    popen = subprocess.Popen

    def start(_: list[str], stdin: int, **options: Any) -> subprocess.Popen[bytes]:
        return popen(talks, stdin=subprocess.PIPE, **options)

    monkeypatch.setattr(child.subprocess, "Popen", start)
    launch = MasterLaunch(path="", name="numbers", store=str(tmp_path), max_slots=1)
    watching = Supervisor(launch, on_crash=print)
    watching.start()
    log = tmp_path / "numbers" / "run" / "master.log"
    assert watching._master is not None
    process = watching._master._process
    assert process.stdin is not None
    deadline = time.monotonic() + 120
    for _ in range(5):
        while log.stat().st_size < 20_000:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        assert watching.poll() is None
        assert log.stat().st_size == 0
        process.stdin.write(b"\n")
        process.stdin.flush()
    process.stdin.close()
    process.wait()
    kept = {path.name: path.read_text() for path in log.parent.glob("master.log.*")}
    assert kept == {"master.log.1": "4" * 10_000, "master.log.2": "3" * 10_000}
