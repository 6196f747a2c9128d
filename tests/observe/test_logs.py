"""What the code of a job prints is found again: by slot and by operator, through rotation and a slot's death."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

from engine.api import StreamEnvironment
from engine.connectors.table import TableSink
from engine.host.system import QueueOffload
from engine.observe import logs
from engine.observe.logs import LogReader, LogWriter, capturing
from engine.runtime.running import RUNNING
from engine.testing import ListSource, run


@contextmanager
def slot_process(log: LogWriter) -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """As if this were a slot's own process; gives its standard output and error."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        with capturing(log):
            yield out, err
        print("of another task, in the same process")


def read(folder: Path, **only: Any) -> list[str]:
    return [f"{line.name} {line.operator} {line.text}" for line in LogReader(folder, **only).read()]


def test_what_a_slot_prints_logs_and_warns_of_is_in_its_log_and_where_it_always_was(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    with slot_process(log) as streams:
        print("before it knows which slot it is")
        log.rename("slot-1")
        print("two", "words", flush=True)
        print("lines\nof one print", file=sys.stderr)
        logging.getLogger("mine").info("quiet")
        logging.getLogger("mine").error("loud")
        warnings.warn("careful", stacklevel=1)
    got = read(tmp_path)
    assert got[:6] == [
        "slot-1 - before it knows which slot it is",
        "slot-1 - two words",
        "slot-1 - lines",
        "slot-1 - of one print",
        "slot-1 - INFO mine: quiet",
        "slot-1 - ERROR mine: loud",
    ]
    assert any("UserWarning: careful" in line for line in got) and not any("another task" in line for line in got)
    out, err = (stream.getvalue() for stream in streams)
    assert out == "before it knows which slot it is\ntwo words\nof another task, in the same process\n"
    assert err.startswith("lines\nof one print\nERROR mine: loud\n") and "quiet" not in err


def test_bytes_that_are_written_past_the_text_are_where_they_always_were(tmp_path: Path) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with redirect_stdout(out), capturing(LogWriter(tmp_path, "slot-0")):
        sys.stdout.buffer.write(b"raw")
        assert sys.stdout.encoding == "utf-8"
    assert out.buffer.getvalue() == b"raw" and not read(tmp_path)  # type: ignore[attr-defined]


def test_lines_name_the_operator_and_the_subtask_whose_code_wrote_them(tmp_path: Path) -> None:
    def job(env: StreamEnvironment) -> None:
        def clean(row: dict[str, Any]) -> dict[str, Any]:
            print(f"cleaning {row['n']}")
            return row

        def check(row: dict[str, Any]) -> bool:
            logging.getLogger("check").warning("checking %d", row["n"])
            return True

        numbers = env.from_source(ListSource([{"n": 1}, {"n": 2}]), "n long", uid="numbers")
        numbers.map(clean).filter(check).sink_to(TableSink("out"), uid="out")

    with slot_process(LogWriter(tmp_path, "slot-0")):
        run(job)
    assert read(tmp_path, operator="map-1") == ["slot-0 map-1[0] cleaning 1", "slot-0 map-1[0] cleaning 2"]
    assert read(tmp_path, operator="filter-2")[0] == "slot-0 filter-2[0] WARNING check: checking 1"
    assert RUNNING.get() is None
    reader = LogReader(tmp_path, operator="nobody")
    assert not list(reader.read()) and {"map-1", "filter-2"} <= reader.operators


def test_work_that_an_operator_hands_to_a_thread_is_still_its_own(tmp_path: Path) -> None:
    log, done = LogWriter(tmp_path, "slot-0"), threading.Event()
    offload = QueueOffload(lambda work: work(), threads=1)

    class At:
        uid = "out"

        class subtask:
            index = 3

    def inside() -> None:
        RUNNING.set(At)  # type: ignore[arg-type]
        offload.submit("queue", lambda: log.write("persisted"), lambda *_: done.set())

    copy_context().run(inside)
    assert done.wait(60) and read(tmp_path) == ["slot-0 out[3] persisted"]


def test_logs_of_all_slots_are_one_in_the_order_of_time_and_can_be_followed(tmp_path: Path) -> None:
    writers = [LogWriter(tmp_path, name) for name in ("slot-0", "slot-1", "master")]
    reader = LogReader(tmp_path)
    writers[0].write("zero")
    time.sleep(0.002)  # a line says when it was written, to the millisecond
    writers[2].write("decided")
    assert [line.name for line in reader.read()] == ["slot-0", "master"]
    assert not list(reader.read())
    writers[1].write("one")
    assert [line.text for line in reader.read()] == ["one"]
    assert [line.text for line in LogReader(tmp_path, slot=1).read()] == ["one"]


def test_a_log_is_bounded_and_one_that_can_t_be_written_disturbs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 1000)
    log = LogWriter(tmp_path, "slot-0")
    for number in range(200):
        log.write(f"line {number}")
    assert len(list(tmp_path.iterdir())) == 3
    texts = [line.text for line in LogReader(tmp_path).read()]
    assert texts == [f"line {number}" for number in range(200 - len(texts), 200)] and len(texts) > 40
    assert all(path.stat().st_size < 1100 for path in tmp_path.iterdir())
    nowhere = LogWriter(tmp_path / "slot-0.log" / "no folder", "slot-0")
    nowhere.write("lost")
