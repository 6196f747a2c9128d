"""A slot that must end does end, whatever has become of those who would hear its last words."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import threading, time
from engine.spark.slot_process import end_process
threading.Thread(target=end_process, args=("the lease is over",), daemon=True).start()  # as the heartbeat's thread does
time.sleep(15)
"""


def test_the_last_words_are_said_where_somebody_reads_them() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
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
        ended = subprocess.run([sys.executable, "-c", PROGRAM], stderr=write, timeout=60)
    finally:
        os.close(write)
        if reader == "silent":
            os.close(read)
    assert ended.returncode == 1
