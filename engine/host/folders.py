"""The folders of a store on this machine: who may write to them."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from engine.core.errors import WeirError
from engine.host.places import local_folder
from engine.store.bucket import is_bucket
from engine.store.directory import check_directory
from engine.store.opening import check_bucket

PRIVATE = 0o700
"""The mode of a job's folder, whatever the umask: state, history and tables below it are the job's user's alone."""


def check_store(store: str | Path, job: str, *, allow_shared: bool) -> None:
    """Makes the store if it does not exist. Raises an error if it can't be one, or if other users can write to it.

    A bucket is not made, and who may write to it is its owner's choice; then this looks at the folder of this machine.
    Whoever can write to a job's folder can replace `launch.json`, and so run code as the user of the job. Whoever can
    write to a folder above it can put another one in its place.
    """
    if is_bucket(store):
        check_bucket(str(store))
    folder = local_folder(store)
    check_directory(folder)
    if allow_shared:
        return
    for place in (*_above(folder), folder, folder / job):
        above = not place.is_relative_to(folder)
        why = others_can_write(place.lstat(), os.getuid(), own_group=above) if place.exists() else None
        if why is not None:
            raise WeirError(
                f"{place} {why}, so others could replace what this job trusts: take that right away "
                f"(chmod go-w {place}), choose another store, or allow it with --allow-shared-store"
            )


def _above(folder: Path) -> list[Path]:
    """Returns the folders above the store, also those behind symbolic links, and these links."""
    return [*folder.parents, *(folder.resolve(), *folder.resolve().parents)]


def others_can_write(of: os.stat_result, user: int, *, own_group: bool = False) -> str | None:
    """Returns why users other than this one can change a folder or a link, or None if they can't. root always can.

    `own_group`: a group in which this user is alone does not count as others.
    """
    if of.st_uid not in (user, 0):
        return f"belongs to another user (uid {of.st_uid})"
    mode = stat.S_IMODE(of.st_mode)
    if of.st_mode & stat.S_ISVTX or stat.S_ISLNK(of.st_mode):
        return None  # others can add to a sticky folder, not replace what is ours; a link has all the bits
    if mode & stat.S_IWOTH:
        return f"can be written by others (mode {mode:04o})"
    if mode & stat.S_IWGRP and not (own_group and alone_in(of.st_gid, user)):
        return f"can be written by others (its group {of.st_gid}, mode {mode:04o})"
    return None


def alone_in(group: int, user: int) -> bool:
    """Returns True for the group of one that many systems give each user: it has the user's name and no other member.

    The members of other groups can't be known: directories of users need not list them.
    """
    try:
        found, name = grp.getgrgid(group), pwd.getpwuid(user).pw_name
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}
