"""A folder for the temporary files and sockets of a Spark on this machine, which no other user can look into.

Spark's own folders for temporary files can be listed by everybody, and hold the closures of tasks.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def private_scratch() -> Iterator[Path]:
    """Makes the folder, and deletes it at the end. Also deletes folders of processes that were killed."""
    _delete_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"weir-{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _delete_abandoned(parent: Path) -> None:
    for folder in parent.glob("weir-*-*"):
        found = re.fullmatch(r"weir-(\d+)-\w+", folder.name)
        if found and not Path("/proc", found[1]).exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)  # fails for the folders of other users
