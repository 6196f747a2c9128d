"""Failpoints: named moments of a checkpoint, of publishing and of committing, at which a drill strikes.

A drill starts the processes of its job with WEIR_FAILPOINTS, a folder. Whoever reaches a moment looks there for a file
of its name, which is an order, carries it out, and leaves a file that says which process did so and when. Without that
variable the decorator returns the function itself: nothing of a failpoint is left, not even a call.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

VARIABLE = "WEIR_FAILPOINTS"
_FOLDER = os.environ.get(VARIABLE, "")
_LOOK_S = 0.02


class Point(Enum):
    """The moments, in the order in which a checkpoint passes them; then those that all files and frames pass."""

    BEFORE_STATE = "before-state"
    AFTER_TABLE_FILE = "after-table-file"
    BEFORE_ACK = "before-ack"
    BEFORE_MANIFEST = "before-manifest"
    BEFORE_RECORD = "before-record"
    AFTER_RECORD = "after-record"
    BEFORE_SEAL = "before-seal"
    AFTER_TABLE = "after-table"
    AFTER_COMMIT = "after-commit"

    FILE_WRITE = "file-write"
    FILE_SYNC = "file-sync"
    CHANNEL = "channel"


class Does(Enum):
    """What an order says. The first process that meets `KILL` uses it up; others last until they are taken back."""

    KILL = "kill"
    DELAY = "delay"
    REFUSE = "refuse"
    HOLD = "hold"


DELAY_S = 0.7
"""The time that each call takes longer under the order `DELAY`."""


def failpoint(before: Point | None = None, after: Point | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Names the moments right before and right after each call of a function that returns."""

    def named(function: Callable[P, R]) -> Callable[P, R]:
        if not _FOLDER:
            return function

        @functools.wraps(function)
        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            if before is not None:
                _reached(before)
            result = function(*args, **kwargs)
            if after is not None:
                _reached(after)
            return result

        return watched

    return named


def _reached(point: Point) -> None:
    order = Path(_FOLDER, point.value)
    try:
        does = Does(order.read_text())
    except FileNotFoundError:
        return
    if does is Does.KILL:
        try:
            order.rename(_met(point))
        except FileNotFoundError:
            return  # another process was faster
        os.kill(os.getpid(), signal.SIGKILL)
    if not any(Path(_FOLDER).glob(f"{point.value}.met-{os.getpid()}-*")):
        _met(point).touch()
    if does is Does.DELAY:
        time.sleep(DELAY_S)
    elif does is Does.REFUSE:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    while does is Does.HOLD and order.exists():
        time.sleep(_LOOK_S)


def _met(point: Point) -> Path:
    """Returns the file that says who met an order, and when."""
    return Path(_FOLDER, f"{point.value}.met-{os.getpid()}-{time.time_ns() // 1_000_000}")
