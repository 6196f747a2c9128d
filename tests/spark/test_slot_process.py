"""A slot that must end does end, whatever has become of those who would hear its last words."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.api import StreamEnvironment
from engine.graph.scalable import ScalableJob
from engine.network.control import ControlServer
from engine.observe.logs import LogWriter
from engine.protocol.ids import AttemptId
from engine.protocol.messages import (
    Deploy,
    Deployed,
    EndProcess,
    Heartbeat,
    LongStep,
    Register,
    SlotMessage,
    Start,
)
from engine.spark.slot_process import SlotLaunch, _Slot

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys, threading, time
from engine.spark import slot_process
from engine.spark.slot_process import end_process
slot_process.LAST_WORDS_S = float(sys.argv[1])
threading.Thread(target=end_process, args=("the lease is over",), daemon=True).start()  # as the heartbeat's thread does
time.sleep(90)
"""


def test_the_last_words_are_said_where_somebody_reads_them() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, "60"], capture_output=True, text=True, timeout=180)
    assert ended.returncode == 1 and "ends itself: the lease is over" in ended.stderr


@pytest.mark.parametrize("reader", ["dead", "silent"])
def test_a_reader_that_is_dead_or_does_not_read_saves_nobody(reader: str) -> None:
    read, write = os.pipe()
    if reader == "dead":
        os.close(read)
    else:
        os.set_blocking(write, False)
        while True:  # fills the pipe: the next write would wait for ever
            try:
                os.write(write, b"x" * 65536)
            except BlockingIOError:
                break
        os.set_blocking(write, True)
    try:
        ended = subprocess.run([sys.executable, "-c", PROGRAM, "1"], stderr=write, timeout=180)
    finally:
        os.close(write)
        if reader == "silent":
            os.close(read)
    assert ended.returncode == 1


class Answers:
    """A JobMaster that deploys the slot which registers, and keeps the long steps of its heartbeats."""

    def __init__(self) -> None:
        self.steps: list[tuple[LongStep, float]] = []
        """The long steps of its heartbeats, and when each was heard."""
        self.gone = threading.Event()
        self.session = ""
        self.server = ControlServer("hangs", "127.0.0.1", "token", self._hears, lambda *_: self.gone.set())

    def _hears(self, session: str, message: SlotMessage) -> None:
        self.session = session
        attempt = AttemptId(1, 1)
        if isinstance(message, Register):
            self.server.send(session, Deploy(attempt, 0, [message.address], None, "id", plan=message.plan))
        elif isinstance(message, Deployed):
            self.server.send(session, Start(attempt))
        elif isinstance(message, Heartbeat) and message.step is not None:
            self.steps.append((message.step, time.monotonic()))


HANGS = """
import pathlib, sys, time
from engine.api import StreamEnvironment
from engine.spark.slot_process import SlotLaunch, run_slot

def never_ends(since_s):
    pathlib.Path(store, "began").write_text(str(since_s))
    time.sleep(600)

def slow(row):
    global ended_s
    if row["n"] == 5:
        never_ends(ended_s)
    time.sleep(0.3)
    ended_s = time.monotonic()
    return row

def build():
    env = StreamEnvironment(parallelism=1)
    rows = env.from_elements([{"n": n} for n in range(10)], schema="n long")
    rows.map(slow, schema="n long", uid="slow").print()
    return env.scalable("hangs")

store, address = sys.argv[1:]
run_slot(SlotLaunch("hangs", build, store, "nonce", address, "token", 300.0, 10.0, ()), 0, 0)
"""


def test_a_hung_function_is_named_in_heartbeats_and_its_process_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """Records of 0.3 s each are no long step, though their batch takes longer than one; the sixth never ends."""
    (tmp_path / "nonce").write_bytes(b"n")
    master = Answers()
    slot = subprocess.Popen([sys.executable, "-c", HANGS, str(tmp_path), master.server.address], cwd=ROOT)
    try:
        until, hung = time.monotonic() + 120, list[tuple[LongStep, float]]()
        while len(hung) < 2:  # the first one may have been measured in the record before
            assert time.monotonic() < until and slot.poll() is None, master.steps
            time.sleep(0.05)
            hung = [(step, heard_s) for step, heard_s in master.steps if "never_ends" in step.stack]
        step, heard_s = hung[1]
        assert (step.uid, step.subtask) == ("slow", "elements[0]"), step
        since_s = float((tmp_path / "began").read_text())
        assert step.for_ms <= (heard_s - since_s) * 1000, "it counts from the end of the record before"
        master.server.send(master.session, EndProcess("it hangs"))
        assert slot.wait(60) == 1
        assert master.gone.wait(60)
    finally:
        slot.kill()
        slot.wait()


def test_the_lease_of_a_slot_begins_with_its_registration(tmp_path: Path) -> None:
    """Building a job may take longer than the lease, and its JobMaster says nothing meanwhile."""
    server = ControlServer("job", "127.0.0.1", "token", lambda *_: None, lambda *_: None)
    built: list[float] = []

    def build() -> ScalableJob:
        env = StreamEnvironment()
        env.from_elements([{"n": 1}], "n long").print()
        job = env.scalable("job")
        built.append(time.monotonic())
        return job

    launch = SlotLaunch("job", build, str(tmp_path), "job/run/nonce", server.address, "token", 0.0, 10.0, ())
    slot = _Slot(launch, 1, 0, LogWriter(tmp_path))
    slot._ended.set()
    slot._control.close()
    server.close(5.0)
    assert slot._heard_s >= built[0]
