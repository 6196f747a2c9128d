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

    Whoever can write to a job's folder can replace `launch.json`, and so run code as the user of the job. Whoever can
    write to a folder above it can put another one in its place.
    """
    folder = Path(store).absolute()
    check_directory(folder)
    if allow_shared:
        return
    for place in (*_above(folder), folder, folder / job):
        why = (
            others_can_write(place.lstat(), os.getuid(), group=place.is_relative_to(folder)) if place.exists() else None
        )
        if why is not None:
            raise WeirError(
                f"{place} {why}, so others could replace what this job trusts: take that right away "
                f"(chmod go-w {place}), choose another store, or allow it with --allow-shared-store"
            )


def _above(folder: Path) -> list[Path]:
    """Returns the folders above the store, also those behind symbolic links, and these links."""
    return [*folder.parents, *(folder.resolve(), *folder.resolve().parents)]


def others_can_write(of: os.stat_result, user: int, *, group: bool = True) -> str | None:
    """Returns why users other than this one can change a folder or a link, or None if they can't. root always can.

    `group`: its group counts as others. Above a store it does not: many systems give each user a group of one.
    """
    if of.st_uid not in (user, 0):
        return f"belongs to another user (uid {of.st_uid})"
    sticky = of.st_mode & stat.S_ISVTX  # others can add entries, and can't replace ours
    bits = stat.S_IWOTH | (stat.S_IWGRP if group else 0)
    if of.st_mode & bits and not sticky and not stat.S_ISLNK(of.st_mode):  # a link has all the bits, and only an owner
        return f"can be written by others (mode {stat.S_IMODE(of.st_mode):04o})"
    return None
