"""Opens a folder anywhere by its address, for what leaves the job's own store: savepoints."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from engine.core.errors import WeirError
from engine.core.ports import Store
from engine.store.below import Below
from engine.store.bucket import is_bucket
from engine.store.directory import DirectoryStore
from engine.store.opening import open_store


def open_place(place: str) -> Store:
    """Returns a store that begins at this folder: a path, `file:///…` or `s3://bucket/prefix`. It may be missing."""
    scheme = urlsplit(place).scheme if "://" in place else ""
    if is_bucket(place):
        return open_store(place)
    if scheme not in ("", "file") or not place:
        raise WeirError(f"{place!r} is no address of a folder: write a path, file:///path or s3://bucket/prefix")
    folder = Path(unquote(urlsplit(place).path) if scheme else place).absolute()
    # The store begins at the folder that exists: it then makes the names of the new folders durable, too.
    there = next(one for one in (folder, *folder.parents) if one.exists())
    return DirectoryStore(there) if there == folder else Below(DirectoryStore(there), str(folder.relative_to(there)))
