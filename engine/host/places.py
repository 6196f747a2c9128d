"""Where the files of a job lie that belong to one machine: its logs, the address of its JobMaster, its heartbeat.

For a store in a directory they lie in it, beside everything else. A bucket holds no files that processes append to or
look at every second, so a job whose store is a bucket has them in this machine's state folder. Two servers may have a
bucket of the same name, so the folder's name is made from both.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from engine.store.bucket import Bucket, Endpoint, is_bucket

STATE = "WEIR_STATE"


def local_folder(store: str | Path) -> Path:
    """Returns the folder on this machine in which each job of the store has a folder of its own."""
    if not is_bucket(store):
        return Path(store).absolute()
    bucket = Bucket.parse(str(store))
    whole = f"{Endpoint.from_environment()} {bucket}"
    readable = "-".join(filter(None, [bucket.name, *bucket.prefix.split("/")]))
    return state_folder() / f"s3-{readable[:80]}-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"


def state_folder() -> Path:
    """Returns WEIR_STATE, or `weir` in the user's state folder (XDG_STATE_HOME, by default ~/.local/state)."""
    if named := os.environ.get(STATE):
        return Path(named).absolute()
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state").absolute() / "weir"
    except RuntimeError:  # this user has no home, as in some containers
        return Path(tempfile.gettempdir()).absolute() / f"weir-state-{os.getuid()}"
