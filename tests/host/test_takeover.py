"""The order to take over: only the whole order counts, however its pipe ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from engine.host.takeover import Order, give_order

WHOLE = b"take over\n"


def heard(*parts: bytes) -> bool:
    """Returns whether a standby takes these parts for the order, once its supervisor has closed the pipe."""
    read, write = os.pipe()
    before = set(threading.enumerate())
    order = Order(read)
    (waiting,) = set(threading.enumerate()) - before
    for part in parts:
        os.write(write, part)
    assert not order.given
    os.close(write)
    waiting.join()
    return order.given


@pytest.mark.promise("F2")
@pytest.mark.parametrize("parts", [(), (b"take over",), (WHOLE, b"x")], ids=["nothing", "half", "more"])
def test_a_pipe_that_is_closed_without_the_whole_order_is_no_order(parts: tuple[bytes, ...]) -> None:
    assert not heard(*parts)


@pytest.mark.parametrize("parts", [(WHOLE,), (b"take", b" over\n")], ids=["whole", "in_two_parts"])
def test_the_order_is_heard(parts: tuple[bytes, ...]) -> None:
    assert heard(*parts)


def test_an_order_to_a_standby_that_has_just_died_is_no_error() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""], stdin=subprocess.PIPE) as standby:
        standby.wait()
        give_order(standby)
        assert standby.stdin is not None and standby.stdin.closed
