"""A folder for the temporary files and sockets of a job on this machine, which no other user can look into.

Spark's own folders for temporary files can be listed by everybody, and hold the closures of tasks.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "weir-scratch-"
_LOCK = "lock"


@contextmanager
def private_scratch() -> Iterator[Path]:
    """Makes the folder, and deletes it at the end. Also deletes folders of processes that were killed."""
    _delete_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    draft = folder / "unlocked"
    with draft.open("wb") as held:  # the lock ends with this process, even if it is killed
        fcntl.flock(held, fcntl.LOCK_EX)
        draft.rename(folder / _LOCK)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _delete_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            # Another user may have made this: a pipe would block whoever opens it, and a link leads elsewhere.
            held = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:  # another user's, or just deleted
            continue
        try:
            of = os.fstat(held)
            if stat.S_ISREG(of.st_mode) and of.st_uid == os.getuid() == lock.parent.lstat().st_uid:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:  # it is held, or just deleted
            continue
        finally:
            os.close(held)
