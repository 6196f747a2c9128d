"""The address of a store in a bucket, `s3://bucket/prefix`, and what the environment says about its server.

This module imports no client, so that commands and slots of a job in a directory load none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from engine.core.errors import StoreError, WeirError
from engine.core.paths import check_store_path

SCHEME = "s3"
OWN_ENDPOINT, ENDPOINT = "WEIR_S3_ENDPOINT", "AWS_ENDPOINT_URL"
"""The first one wins: a machine may use another server for everything else."""
ACCESS_KEY, SECRET_KEY = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
REGION, DEFAULT_REGION = "AWS_REGION", "AWS_DEFAULT_REGION"
_AWS = "https://s3.amazonaws.com"


def is_bucket(store: str | Path) -> bool:
    return str(store).startswith(f"{SCHEME}://")


@dataclass(frozen=True)
class Bucket:
    """The place of a store: a bucket, and a prefix in it that may be empty."""

    name: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Bucket:
        parts = urlsplit(url)
        prefix = parts.path.strip("/")
        if parts.scheme != SCHEME or not parts.netloc or parts.query or parts.fragment:
            raise WeirError(f"{url!r} is not the address of a store: write it as s3://bucket/prefix")
        if "@" in parts.netloc or ":" in parts.netloc:
            raise WeirError(
                f"the address of a store names only bucket and prefix, as in s3://bucket/prefix; the server is taken "
                f"from {ENDPOINT}, credentials from {ACCESS_KEY} and {SECRET_KEY}"
            )
        if prefix:
            check_store_path(prefix)
        return cls(parts.netloc, prefix)

    def __str__(self) -> str:
        return f"{SCHEME}://{self.name}/{self.prefix}".rstrip("/")

    def key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    def path(self, key: str) -> str:
        return key.removeprefix(f"{self.prefix}/") if self.prefix else key


@dataclass(frozen=True)
class Endpoint:
    """The server of all buckets of this process."""

    netloc: str
    secure: bool
    region: str

    @classmethod
    def from_environment(cls) -> Endpoint:
        name = OWN_ENDPOINT if os.environ.get(OWN_ENDPOINT) else ENDPOINT
        parts = urlsplit(os.environ.get(name) or _AWS)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or "@" in parts.netloc:
            raise StoreError(f"{name} must be an address such as https://minio.example:9000")
        region = os.environ.get(REGION) or os.environ.get(DEFAULT_REGION) or "us-east-1"
        return cls(parts.netloc, parts.scheme == "https", region)

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.netloc}"
