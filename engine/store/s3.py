"""A store in a bucket of MinIO or S3: `s3://bucket/prefix`.

Invariant: `create` sends one request, with the condition that no object of this name exists, and never repeats it by
itself: after a lost answer the outcome is UNKNOWN. All other requests can be repeated, and are, some times.

Addresses and credentials come from the environment, under the names that AWS gave them. No message of this module
contains an address with a signature, or a credential.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, BinaryIO, Self, TypeVar, cast
from urllib.parse import quote

import urllib3
from minio import Minio
from minio.commonconfig import ComposeSource
from minio.credentials.providers import EnvAWSProvider
from minio.deleteobjects import DeleteObject
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NameResolutionError,
    NewConnectionError,
    ResponseError,
)

from engine.core.errors import StoreError, WeirError
from engine.core.paths import check_store_path
from engine.core.pieces import PiecesReader
from engine.core.ports import Data, Store
from engine.protocol.epoch_records import Created
from engine.store.below import Below
from engine.store.bucket import ACCESS_KEY, ENDPOINT, SECRET_KEY, Bucket, Endpoint
from engine.store.memory import listed
from engine.store.reading import content

PART_BYTES = 16 << 20
"""Larger files are sent in parts of this size, `PARTS_AT_ONCE` at a time."""
PARTS_AT_ONCE = 4
ASKED_AT_ONCE = 16
"""So many requests for the contents or the sizes of several files are under way at a time."""
CONNECTIONS = 32
"""So many connections are kept open: those requests must not take the connections of others."""
CONNECT_S, ANSWER_S = 5.0, 30.0
RETRIES = 4
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
_CONDITION = {"If-None-Match": "*"}
_SIGNED_FOR = timedelta(minutes=5)

T = TypeVar("T")


def client_from_environment(http: urllib3.PoolManager) -> Minio:
    """Raises a StoreError if the environment lacks something: on another machine it may have it."""
    endpoint = Endpoint.from_environment()
    missing = [name for name in (ACCESS_KEY, SECRET_KEY) if not os.environ.get(name)]
    if missing:
        raise StoreError(f"the environment lacks {' and '.join(missing)}: set them to the credentials of the store")
    return Minio(
        endpoint.netloc,
        credentials=EnvAWSProvider(),
        secure=endpoint.secure,
        region=endpoint.region,
        http_client=http,
    )


def pause_s(repeats: int, chance: float) -> float:
    """Returns how long to wait before a request is sent again that was repeated so often. `chance` is in [0, 1).

    The pause doubles each time, up to a bound. Chance takes away up to half of it: clients that failed together, such
    as the slots of a job, must not come back together.
    """
    longest = min(FIRST_PAUSE_S * 2 ** min(repeats, 30), LONGEST_PAUSE_S)
    return longest * (1 - chance / 2)


class _Repeats(urllib3.Retry):
    """Pauses as its store does. What a server says in Retry-After is not heard: it may be minutes, without a bound."""

    pause: Callable[[int], None]

    def new(self, **changed: Any) -> Self:
        made = super().new(**changed)
        made.pause = self.pause
        return made

    def sleep(self, response: urllib3.BaseHTTPResponse | None = None) -> None:
        self.pause(len(self.history) - 1)


_NO_SUCH_FILE = ("NoSuchKey", "XMinioInvalidObjectName")


class S3Store:
    """`answer_s`: how long a request may wait for an answer before it is repeated or its outcome is unknown.

    `sleep` and `chance` make the pauses before a request is repeated.
    """

    def __init__(
        self,
        url: str,
        *,
        answer_s: float = ANSWER_S,
        retries: int = RETRIES,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._bucket = Bucket.parse(url)
        self._retries = retries
        self._sleep = sleep
        self._chance = chance
        repeated = _Repeats(total=retries, status_forcelist=(500, 502, 503, 504), raise_on_status=False)
        repeated.pause = self._pause
        self._http = urllib3.PoolManager(
            maxsize=CONNECTIONS, timeout=urllib3.Timeout(connect=CONNECT_S, read=answer_s), retries=repeated
        )

        self._written: set[str] = set()
        """Written by this object, and not synced or deleted since."""

    @cached_property
    def _client(self) -> Minio:
        """Is made with the first request, so that a process without credentials can still say what it lacks."""
        return client_from_environment(self._http)

    def __str__(self) -> str:
        return str(self._bucket)

    def _key(self, path: str) -> str:
        check_store_path(path)
        return self._bucket.key(path)

    def write(self, path: str, data: Data) -> None:
        key = self._key(path)
        with self._errors(f"can't write {path}"):
            self._client.put_object(
                self._bucket.name,
                key,
                cast(BinaryIO, PiecesReader(data)),  # the client only reads
                len(data),
                part_size=PART_BYTES,
                num_parallel_uploads=PARTS_AT_ONCE,
            )
        self._written.add(path)

    def sync(self, paths: list[str]) -> None:
        """Looks whether objects exist that others wrote. The server makes each durable before it answers a write."""
        for path in paths:
            key = self._key(path)
            if path in self._written:
                self._written.discard(path)
                continue
            with self._errors(f"can't sync {path}"):
                self._client.stat_object(self._bucket.name, key)

    def create(self, path: str, data: bytes) -> Created:
        # The client can't send a condition with `put_object`, so it signs an address for a request of our own.
        address = self._client.presigned_put_object(self._bucket.name, self._key(path), _SIGNED_FOR)
        try:
            answer = self._http.request("PUT", address, body=data, headers=_CONDITION, retries=False, redirect=False)
        except (NewConnectionError, ConnectTimeoutError, NameResolutionError) as error:
            raise StoreError(f"can't create {path} in {self}: {_in_words(error)}") from None
        except HTTPError:
            return Created.UNKNOWN
        match answer.status:
            case 200:
                return Created.CREATED
            case 412:
                return Created.EXISTS
            case 400 | 401 | 403 | 404 | 405 | 501:
                raise StoreError(f"can't create {path} in {self}: {_refusal(answer)}")
            case _:  # 409: another conditional create is under way; 5xx: the server may have made the object
                return Created.UNKNOWN

    def read(self, path: str) -> bytes:
        key = self._key(path)
        with self._errors(f"can't read {path}"):
            return self._repeated(lambda: self._get(key))

    def _get(self, key: str) -> bytes:
        try:
            answer = self._client.get_object(self._bucket.name, key)
        except S3Error as error:
            if error.code in _NO_SUCH_FILE:
                raise FileNotFoundError(f"{self}: {self._bucket.path(key)} does not exist") from None
            raise
        try:
            return bytes(answer.read())
        finally:
            answer.close()
            answer.release_conn()

    def read_all(self, paths: list[str]) -> list[bytes | None]:
        return _beside_each_other(partial(content, self), paths)

    def sizes(self, paths: list[str]) -> list[int | None]:
        return _beside_each_other(self._size, paths)

    def _size(self, path: str) -> int | None:
        key = self._key(path)
        with self._errors(f"can't look at {path}"):
            try:
                return int(self._client.stat_object(self._bucket.name, key).size or 0)
            except S3Error as error:
                if error.code in _NO_SUCH_FILE:
                    return None
                raise

    def list(self, prefix: str) -> list[str]:
        if prefix:
            check_store_path(prefix)
        with self._errors(f"can't list {prefix or 'the store'}"):
            return listed(self._below(prefix), prefix)

    def _below(self, prefix: str) -> Iterator[str]:
        start = self._bucket.key(f"{prefix}/") if prefix else self._bucket.key("")
        for entry in self._client.list_objects(self._bucket.name, prefix=start, recursive=True):
            if entry.object_name:
                yield self._bucket.path(entry.object_name)

    def folders(self, path: str) -> tuple[str, ...]:
        """Returns the names of the directories in a directory; the empty path is the whole store."""
        if path:
            check_store_path(path)
        start = self._bucket.key(f"{path}/") if path else self._bucket.key("")
        with self._errors(f"can't list {path or 'the store'}"):
            found = self._client.list_objects(self._bucket.name, prefix=start)
            return tuple(sorted(_last(one.object_name or "") for one in found if one.is_dir))

    def delete(self, path: str) -> None:
        key = self._key(path)
        for written in [one for one in self._written.copy() if one == path or one.startswith(f"{path}/")]:
            self._written.discard(written)
        with self._errors(f"can't delete {path}"):
            doomed = [DeleteObject(one) for one in (key, *(self._bucket.key(below) for below in self._below(path)))]
            remove = partial(self._client.remove_objects, self._bucket.name)
            failed = self._repeated(lambda: list(remove(doomed)), InvalidResponseError, ServerError)
        if failed:
            raise StoreError(f"can't delete {self._bucket.path(failed[0].name or '')} in {self}: {failed[0].code}")

    def copy_from(self, path: str, source: Store, source_path: str) -> bool:
        """Lets the server copy. All stores of a process are on one server: its address is in the environment."""
        if isinstance(source, Below):
            source, source_path = source.whole(source_path)
        if not isinstance(source, S3Store):
            return False
        key, origin = self._key(path), ComposeSource(source._bucket.name, source._key(source_path))
        with self._errors(f"can't copy {source_path} to {path}"):
            try:
                self._client.compose_object(self._bucket.name, key, [origin])
            except S3Error as error:
                if error.code == "NoSuchKey":
                    raise FileNotFoundError(f"{source}: {source_path} does not exist") from None
                raise
        self._written.add(path)
        return True

    def uri(self, path: str) -> str:
        return f"s3a://{self._bucket.name}/{quote(self._bucket.key(path))}"

    def below(self, path: str) -> Below:
        return Below(self, path)

    def check(self) -> None:
        """Raises an error that says what to do if this can't be a store, or if it ignores the condition of `create`."""
        probe = f".probe-{secrets.token_hex(8)}"
        try:
            outcomes = [self.create(probe, b"first")]
            if outcomes == [Created.CREATED]:
                outcomes.append(self.create(probe, b"second"))
            if Created.UNKNOWN in outcomes:
                raise StoreError(f"the server in {ENDPOINT} fails, or does not answer in time")
            content = self.read(probe)
        except (StoreError, FileNotFoundError) as error:
            raise WeirError(f"{self} can't be the store: {error}") from None
        finally:
            self._forget(probe)
        if outcomes != [Created.CREATED, Created.EXISTS] or content != b"first":
            raise WeirError(
                f"the store {self} does not honour conditional writes (If-None-Match), with which Weir commits epochs: "
                "use a server that does, such as MinIO or S3"
            )

    def _forget(self, probe: str) -> None:
        with suppress(StoreError):  # the error of the probe itself says more
            self.delete(probe)

    def _repeated(self, request: Callable[[], T], *refusals: type[Exception]) -> T:
        """Repeats what the client does not: an answer that broke off in the middle, and these refusals."""
        passing: tuple[type[Exception], ...] = (HTTPError, *refusals)
        for number in range(self._retries):
            try:
                return request()
            except MaxRetryError:
                raise  # the client has repeated it already
            except passing:
                self._pause(number)
        return request()

    def _pause(self, repeats: int) -> None:
        self._sleep(pause_s(repeats, self._chance()))

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (MinioException, HTTPError) as error:
            raise StoreError(f"{what} in {self}: {_in_words(error)}") from None


def _beside_each_other(request: Callable[[str], T], paths: list[str]) -> list[T]:
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return list(pool.map(request, paths))


def _last(key: str) -> str:
    return key.rstrip("/").rpartition("/")[2]


_ADVICE = {
    "AccessDenied": f"access denied; the credentials in {ACCESS_KEY} and {SECRET_KEY} need the right to read, write, "
    "list and delete there",
    "InvalidAccessKeyId": f"the server does not know the access key in {ACCESS_KEY}",
    "SignatureDoesNotMatch": f"the server refuses the signature; is {SECRET_KEY} right?",
    "NoSuchBucket": "the bucket does not exist: create it, or choose another one",
    "RequestTimeTooSkewed": "the clock of this machine differs too much from the server's",
    "XMinioStorageFull": "the server has no space left",
}


def _refusal(answer: urllib3.BaseHTTPResponse) -> str:
    """Returns the reason in a refusing answer, without the address, which holds a signature."""
    text = answer.data.decode("utf-8", "replace")
    code = text.partition("<Code>")[2].partition("</Code>")[0]
    return _ADVICE.get(code, code or f"the server answered {answer.status}")


def _in_words(error: Exception) -> str:
    if isinstance(error, MaxRetryError) and error.reason is not None:
        return _in_words(error.reason)
    if isinstance(error, S3Error):
        return _ADVICE.get(error.code or "", error.code or "the server refused the request")
    if isinstance(error, NewConnectionError | NameResolutionError):
        return f"no connection to the server in {ENDPOINT}"
    if isinstance(error, InvalidResponseError | ServerError | ResponseError):
        answered = re.search(r"\b[45]\d\d\b", str(error))  # the client's own words go on with parts of the answer
        return f"the server in {ENDPOINT} fails{f' ({answered[0]})' if answered else ''}; look at its own log"
    if isinstance(error, HTTPError):
        return f"the server in {ENDPOINT} did not answer ({type(error).__name__}): is it up, and reachable from here?"
    return str(error)  # of the client itself, such as an answer that is not XML
