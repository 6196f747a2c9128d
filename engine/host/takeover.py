"""The order to take over: a pipe from a supervisor to its standby, which waits at the other end.

The order stays in the pipe until the standby has started. Invariant: a standby never takes a closed pipe for the order,
because its supervisor may have been killed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading

_ORDER = b"take over\n"


class Order:
    """The standby's end: its standard input, which is empty for everything else that runs in this process."""

    def __init__(self, descriptor: int) -> None:
        self._given = threading.Event()
        threading.Thread(target=self._read, args=(descriptor,), name="waits for the order", daemon=True).start()

    @classmethod
    def inherited(cls) -> Order:
        order = os.dup(0)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        return cls(order)

    @property
    def given(self) -> bool:
        return self._given.is_set()

    def _read(self, descriptor: int) -> None:
        said = b""
        while part := os.read(descriptor, 64):
            said += part
        os.close(descriptor)
        if said == _ORDER:
            self._given.set()


def give_order(standby: subprocess.Popen[bytes]) -> None:
    """Tells a standby to take over. One that has just died does not hear it."""
    assert standby.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        standby.stdin.write(_ORDER)
        standby.stdin.close()
