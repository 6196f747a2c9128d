"""Locks between processes. The kernel lets go of a lock when the last process that holds it ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def take(path: Path) -> int | None:
    """Takes the lock and returns its descriptor, which a child may inherit with the lock; None: somebody holds it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextlib.contextmanager
def held(path: Path) -> Iterator[bool]:
    """Holds the lock meanwhile. Says whether it could be taken."""
    descriptor = take(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_held(path: Path) -> bool:
    """Says whether a process holds the lock. A file that is not there is no lock.

    Whoever takes the lock at this very moment may find it held: ask for locks only that are taken once.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
