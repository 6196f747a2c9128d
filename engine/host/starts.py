"""The last start of a job whose store is a bucket, as the bucket knows it, whichever machine made it.

`<job>/launch.json` is the last start and its machine; only a start writes it. `<job>/desired/<start>.json` says whether
the job should be running, and with which options: each start has a file of its own, and that of the last start counts.
So a machine that has lost the job, and does not know it yet, writes over nothing that is the other machine's. For a
store in a directory the run folder is part of the store, and none of this is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.host.launch import MasterLaunch
from engine.store.opening import bucket_client

if TYPE_CHECKING:
    from engine.store.s3 import S3Store

T = TypeVar("T")


class Start(msgspec.Struct, frozen=True):
    launch: MasterLaunch
    host: str


class Desired(msgspec.Struct, frozen=True):
    """Says whether the job should be running. If it should and does not, it may be started again with `launch`.

    `host`: the machine on which it was cancelled, if the last start is another machine's.
    """

    running: bool
    launch: MasterLaunch
    by: str
    at_ms: int
    host: str = ""


class SharedStart:
    def __init__(self, store: Store, job: str) -> None:
        self._store = store
        self._paths = JobPaths(job)

    def write(self, start: Start) -> None:
        """Makes this the last start. What users asked of earlier ones counts no longer, and is deleted.

        It is listed before this start is the last one: what another machine asks of a later start stays.
        """
        earlier = self._store.list(self._paths.desired())
        self._write(self._paths.shared_launch(), start)
        own = self._paths.desired_of(start.launch.id)
        for path in earlier:
            if path != own:
                self._store.delete(path)

    def read(self) -> Start | None:
        return self._read(self._paths.shared_launch(), Start)

    def write_desired(self, desired: Desired) -> None:
        self._write(self._paths.desired_of(desired.launch.id), desired)

    def read_desired(self) -> Desired | None:
        """Returns what was last asked of the last start."""
        start = self.read()
        return self._read(self._paths.desired_of(start.launch.id), Desired) if start is not None else None

    def forget_nonces(self) -> None:
        """Deletes what JobMasters that died left for their slots. To be called only when the job is started anew."""
        for path in self._store.list(self._paths.nonces()):
            self._store.delete(path)

    def _write(self, path: str, what: msgspec.Struct) -> None:
        self._store.write(path, msgspec.json.format(msgspec.json.encode(what)))
        self._store.sync([path])

    def _read(self, path: str, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode(self._store.read(path), type=kind)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None


def shared_start(store: str | Path, job: str) -> SharedStart:
    return SharedStart(_open(store), job)


def shared_jobs(store: str | Path) -> list[str]:
    """Returns the jobs that were ever started with this bucket as their store, on any machine."""
    opened = _open(store)
    return [name for name in opened.folders("") if SharedStart(opened, name).read() is not None]


def _open(store: str | Path) -> S3Store:
    return bucket_client()(str(store), answer_s=10.0, retries=2)
