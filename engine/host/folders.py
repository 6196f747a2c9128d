"""The folders of a store on this machine: who may write to them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from engine.core.errors import WeirError
from engine.store.directory import check_directory

PRIVATE = 0o700
"""The mode of a job's folder, whatever the umask: state, history and tables below it are the job's user's alone."""


def check_store(store: str | Path, job: str, *, allow_shared: bool) -> None:
    """Makes the store if it does not exist. Raises an error if it can't be one, or if other users can write to it.

    Whoever can write to a job's folder can replace `launch.json`, and so run code as the user of the job.
    """
    folder = Path(store).absolute()
    check_directory(folder)
    for place in (folder, folder / job):
        why = None if allow_shared or not place.exists() else others_can_write(place.stat(), os.getuid())
        if why is not None:
            raise WeirError(
                f"{place} {why}, so others could replace what this job trusts: take that right away "
                f"(chmod go-w {place}), choose another store, or allow it with --allow-shared-store"
            )


def others_can_write(of: os.stat_result, user: int) -> str | None:
    """Returns why users other than this one can write to a folder, or None if they can't. root always can."""
    if of.st_uid not in (user, 0):
        return f"belongs to another user (uid {of.st_uid})"
    sticky = of.st_mode & stat.S_ISVTX  # others can add entries, and can't replace ours
    if of.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
        return f"can be written by others (mode {stat.S_IMODE(of.st_mode):04o})"
    return None
