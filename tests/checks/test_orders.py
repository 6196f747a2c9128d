"""Goal: whoever reaches a failpoint carries out the drill's order and says so; without a drill there is no failpoint.

The processes are the test's own: they write to a real store of the engine, with and without WEIR_FAILPOINTS.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine.connectors.table.committer
import engine.network.wire
import engine.snapshot.commits
import engine.snapshot.epoch_log
import engine.snapshot.upload
import engine.store.directory
from checks.catalogue import CATALOGUE, Fault
from checks.orders import Orders
from checks.processes import JobProcesses, process
from checks.strikes import NotStruck, Striker
from engine.store.failpoints import VARIABLE, Does, Point
from tests.seen import running

WRITER = """
import sys, time
from pathlib import Path
from engine.store.directory import DirectoryStore
store = DirectoryStore(sys.argv[1])
while Path(sys.argv[1], "go").exists():
    before = time.monotonic()
    try:
        store.create(f"f{time.monotonic_ns()}", b"x")
        print("written", flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    time.sleep(0.005)
"""


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(tmp_path / "failpoints")


@pytest.fixture
def writer(tmp_path: Path, orders: Orders) -> Iterator[subprocess.Popen[str]]:
    """A process of a drill that writes files to a store all the time."""
    (tmp_path / "go").touch()
    started = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, VARIABLE: str(orders.folder)},
    )
    said(started, "written")
    yield started
    started.kill()
    started.wait()


def said(process: subprocess.Popen[str], sought: str) -> str:
    """Waits until the process says this. A process that ends first fails the test."""
    assert process.stdout is not None
    while line := process.stdout.readline():
        if sought in line:
            return line
    raise AssertionError(f"the process ended without saying {sought!r}")


def strike(fault: Fault, orders: Orders) -> Striker:
    import random

    striker = Striker(JobProcesses(), random.Random(1), orders)
    struck = striker.strike(fault, 0, running("pageviews"))
    assert struck.point == fault.blows[0].at.value if fault.blows[0].at else ""
    return striker


@pytest.mark.promise("H2")
def test_without_a_drill_nothing_of_a_failpoint_is_left() -> None:
    assert VARIABLE not in os.environ
    decorated = [
        engine.store.directory._write,
        engine.store.directory.DirectoryStore._fsync,
        engine.snapshot.upload.upload,
        engine.snapshot.commits.commit_epoch,
        engine.snapshot.epoch_log.EpochLog.publish,
        engine.snapshot.epoch_log.EpochLog.write_manifest,
        engine.connectors.table.committer.TableCommitter.commit,
        engine.network.wire.write_frame,
    ]
    for function in decorated:
        assert not hasattr(function, "__wrapped__") and function.__code__.co_name == function.__name__
    sources = [Path(inspect.getfile(engine.store.directory)).parents[1]]
    named = "".join(path.read_text() for folder in sources for path in folder.rglob("*.py"))
    for point in Point:
        assert f"=Point.{point.name}" in named, f"nobody reaches {point.value}"


@pytest.mark.promise("H2")
def test_the_first_who_reaches_the_moment_is_killed_there_and_says_who_it_was(
    writer: subprocess.Popen[str], orders: Orders
) -> None:
    before_ms = time.time_ns() // 1_000_000
    orders.give(Point.FILE_SYNC, Does.KILL)
    met = orders.wait(Point.FILE_SYNC, 60)
    assert met is not None and met.pid == writer.pid and met.at_ms >= before_ms
    assert writer.wait(60) == -9 and process(writer.pid) is None
    assert not (orders.folder / Point.FILE_SYNC.value).exists(), "the next one who comes there lives"


@pytest.mark.promise("H2")
def test_a_read_only_store_refuses_each_write_until_it_is_let_go(writer: subprocess.Popen[str], orders: Orders) -> None:
    striker = strike(CATALOGUE["store-read-only"], orders)
    assert "Read-only file system" in said(writer, "StoreError")
    assert striker.let_go() and striker.held == []
    said(writer, "written")


@pytest.mark.promise("H2")
def test_a_slow_store_is_slow_and_a_cut_stands_still_until_it_is_let_go(
    writer: subprocess.Popen[str], orders: Orders
) -> None:
    striker = strike(CATALOGUE["store-slow"], orders)
    assert [met.pid for met in orders.met(Point.FILE_SYNC)] == [writer.pid], "one file per process, however often"
    assert striker.let_go()
    orders.give(Point.FILE_WRITE, Does.HOLD)
    assert orders.wait(Point.FILE_WRITE, 60) is not None
    here = process(writer.pid)
    assert here is not None and here.state == "S"
    orders.take_back(Point.FILE_WRITE)
    said(writer, "written")


@pytest.mark.promise("H2")
def test_an_order_that_nobody_meets_gives_no_verdict_and_is_taken_back(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checks.strikes.MET_WITHIN_S", 0.0)
    with pytest.raises(NotStruck, match="no verdict: nobody reached before-ack within 0 s"):
        strike(CATALOGUE["slot-killed-before-ack"], orders)
    assert not (orders.folder / Point.BEFORE_ACK.value).exists()
