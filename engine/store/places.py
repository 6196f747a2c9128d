"""Opens a folder anywhere by its address, for what leaves the job's own store: savepoints."""

from __future__ import annotations

import contextlib
from pathlib import Path
from urllib.parse import unquote, urlsplit

from engine.core.errors import WeirError
from engine.core.ports import Store
from engine.store.below import Below
from engine.store.bucket import is_bucket
from engine.store.directory import DirectoryStore
from engine.store.opening import like_an_address, open_store


def open_place(place: str) -> Store:
    """Returns a store that begins at this folder: a path, `file:///…` or `s3://bucket/prefix`. It may be missing."""
    check_place(place)
    if is_bucket(place):
        return open_store(place)
    scheme = urlsplit(place).scheme if "://" in place else ""
    folder = Path(unquote(urlsplit(place).path) if scheme else place).absolute()
    # The store begins at the folder that exists: it then makes the names of the new folders durable, too.
    there = next(one for one in (folder, *folder.parents) if one.exists())
    return DirectoryStore(there) if there == folder else Below(DirectoryStore(there), str(folder.relative_to(there)))


def check_place(place: str) -> None:
    """Raises an error if this is no address of a folder, such as `s3:/bucket`, where a slash was forgotten."""
    known = is_bucket(place) or place.startswith("file://") or not like_an_address(place)
    if not place or not known:
        raise WeirError(f"{place!r} is no address of a folder: write a path, file:///path or s3://bucket/prefix")


def remove_if_empty(place: str) -> None:
    """Removes the folder at this address if nothing is in it. A bucket has no folders."""
    if not is_bucket(place):
        with contextlib.suppress(OSError):  # somebody keeps other files there, or it is gone
            Path(place).rmdir()
