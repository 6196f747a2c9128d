"""Opens a store by its address: a directory, or a bucket of MinIO or S3 (`s3://bucket/prefix`)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from engine.core.errors import WeirError
from engine.core.ports import Store
from engine.store.bucket import Bucket, is_bucket
from engine.store.directory import DirectoryStore

if TYPE_CHECKING:
    from engine.store.s3 import S3Store


PATIENCE_S = 10.0
"""How long a command waits for each answer of a bucket before it says that there is none."""


_LIKE_AN_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
"""Also `s3:/bucket`: a slash is forgotten easily, and nobody means a folder of the name `s3:`."""


def like_an_address(text: str) -> bool:
    return _LIKE_AN_ADDRESS.match(text) is not None


def address_of(store: str | Path) -> str:
    """Returns the address by which every process of a job finds the store. It never holds a credential."""
    text = str(store)
    if is_bucket(text):
        return str(Bucket.parse(text))
    if like_an_address(text):
        raise WeirError(f"{text!r} is not the address of a store: write a directory, or s3://bucket/prefix")
    return str(Path(text).absolute())


def open_store(store: str | Path) -> DirectoryStore | S3Store:
    """Opens a store. It asks nothing: what is wrong with a bucket is found by the first use of it."""
    if not is_bucket(address_of(store)):
        return DirectoryStore(store)
    return bucket_client()(str(store))


def check_bucket(store: str) -> None:
    """Raises an error that says what to do if a bucket can't be the store, within seconds also if nobody answers."""
    bucket_client()(store, answer_s=PATIENCE_S, retries=1).check()


def bucket_client() -> type[S3Store]:
    """Imports the client of buckets: a job in a directory loads none, and needs none to be installed."""
    try:
        from engine.store.s3 import S3Store
    except ModuleNotFoundError as error:
        raise WeirError(
            f"a store in a bucket needs the module {error.name!r}, which is not installed for {sys.executable}: "
            "pip install 'weir[s3]'"
        ) from error
    return S3Store


def shown(store: Store, path: str) -> str:
    """Returns what a user gives `spark.read.parquet` for a table: the plain path of a folder, or an s3a address."""
    return str(store.root / path) if isinstance(store, DirectoryStore) else unquote(store.uri(path))
