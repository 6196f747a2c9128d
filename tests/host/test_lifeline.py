"""Signs of life and last words from a JobMaster process to its supervisor."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from engine.host.lifeline import Lifeline, Listener, Sign
from engine.protocol.failures import Fault
from engine.protocol.remedy import Death, Stage

SPEAKS = """
import subprocess, sys
from engine.host.lifeline import Lifeline
from engine.protocol.failures import Fault
from engine.protocol.remedy import Stage
lifeline = Lifeline.inherited()
lifeline.show(Stage.DECIDING, 7)
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
lifeline.last_words(Fault.OUTSIDE, "Spark is gone – " + "x" * 5000)
print(child.pid, flush=True)
"""


def test_signs_and_last_words_of_a_process_arrive_and_its_children_do_not_hold_the_line() -> None:
    listener = Listener()
    options = {"stdout": subprocess.PIPE, "env": listener.environ, "pass_fds": [listener.descriptor]}
    process = subprocess.Popen([sys.executable, "-c", SPEAKS], **options)  # type: ignore[call-overload]
    listener.started()
    process.wait()
    sign, last = listener.heard()
    assert sign == Sign(Stage.DECIDING, 7, None)
    assert last.words == Death(Fault.OUTSIDE, last.words.reason) and last.words.reason.startswith("Spark is gone –")
    assert os.read(listener._read, 1) == b"", "the end of the line: no child holds it open"
    listener.close()


def test_a_sign_that_arrives_in_two_parts_is_heard_once_it_is_whole() -> None:
    """A read takes up to 64 KiB, and may end in the middle of a sign."""
    listener = Listener()
    whole = msgspec.json.encode(Sign(Stage.DECIDING, 7)) + b"\n"
    os.write(listener.descriptor, whole + whole[:9])
    assert listener.heard() == [Sign(Stage.DECIDING, 7)]
    os.write(listener.descriptor, whole[9:])
    assert listener.heard() == [Sign(Stage.DECIDING, 7)]
    listener.started()
    listener.close()


def test_neither_end_waits_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener()
    for name, value in listener.environ.items():
        monkeypatch.setenv(name, value)
    lifeline = Lifeline.inherited()
    assert listener.heard() == []
    for epoch in range(10_000):
        lifeline.show(Stage.DECIDING, epoch)  # nobody reads: the pipe is full at some time
    signs = listener.heard()
    assert [sign.epoch for sign in signs] == list(range(len(signs))) and 100 < len(signs) < 10_000
    listener.close()
    lifeline.show(Stage.DECIDING, 1)  # nobody is there any more
    listener.started()


@pytest.mark.parametrize("reason", ["\x1b" * 5000, "can't open /data/\udcff", 'a "quoted" line\n' * 5000])
def test_last_words_arrive_whatever_characters_are_in_them(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    listener = Listener()
    for name, value in listener.environ.items():
        monkeypatch.setenv(name, value)
    lifeline = Lifeline.inherited()
    lifeline.last_words(Fault.OUTSIDE, reason)
    lifeline.show(Stage.DECIDING, 1)  # another thread may still give signs of life
    words, sign = listener.heard()
    assert words.words is not None and sign.epoch == 1
    assert len(msgspec.json.encode(words)) < 4096, "longer ones may be cut off by a pipe that is nearly full"
    listener.close()
    listener.started()


def test_without_a_supervisor_nobody_listens() -> None:
    Lifeline.inherited().show(Stage.LOADING)


def test_a_jobmaster_notices_that_its_supervisor_is_gone() -> None:
    listener = Listener()
    lifeline = Lifeline(os.dup(listener.descriptor))
    listener.started()
    lifeline.show(Stage.LOADING)
    assert not lifeline.broken
    listener.close()
    lifeline.show(Stage.LOADING)
    assert lifeline.broken
