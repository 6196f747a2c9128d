"""The record of a table's audits: what the last one has seen, sealed with the audit key.

    <job>/audits/<table>/0000000012          the record of the 12th audit; the one before it is deleted
    <job>/audits/<table>/<file>.spans        the spans of a large file, written once

The job's history keeps the counts of an epoch for hours only. The record keeps those of all epochs that readers see, in
about ten bytes per epoch and file, so that a change is found whenever it happens. It is signed with the key of the
seals (`checks/seal.py`): whoever changes table, index and history together can't change the record. An older record in
the place of the newest, or none at all, is noticed by the number of the last audit, which this machine remembers.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

import msgspec

from checks.live.ledger import Range, Rewind
from checks.live.spans import Spans, decoded, encoded, summed
from checks.seal import audit_key
from engine.core.errors import StoreError
from engine.core.ports import Store
from engine.host.places import state_folder
from engine.protocol.epoch_records import Created
from engine.protocol.job_description import SinkDescription

PAGE_BYTES = 32 << 20
"""The spans of a file of this size or more are in a file of their own. It is folded no more, or not often."""
MEMORY = "audits.json"


class RecordChanged(StoreError):
    """The record, or one of its pages, is not what an audit with this key wrote."""


class SeenFile(msgspec.Struct, frozen=True):
    """A data file that was found good. `read`: the audit that read it last; 0: it is read by the next one."""

    name: str
    size: int
    checksum: str
    first: int
    last: int
    read: int
    spans: bytes = b""
    page: str = ""
    """The checksum of the file that has the spans, if they are not here."""


class AuditRecord(msgspec.Struct, frozen=True):
    """What the last audit of a table has seen.

    All epochs behind `begin`, up to `epoch`, were compared with the ledger. `owed` has what epochs must have that were
    wrong or could not be compared, `ranges` the same for epochs whose sum only is known. `rows` and `digest` are the
    totals of the table's sinks at `epoch`.
    """

    job_id: str
    table: str
    number: int = 0
    begin: int = 0
    epoch: int = 0
    rows: int = 0
    digest: int = 0
    whole: bool = False
    """Whether the totals are known."""
    files: list[SeenFile] = []
    owed: bytes = b""
    ranges: list[Range] = []
    rewinds: list[Rewind] = []
    sinks: list[SinkDescription] = []

    @property
    def owes(self) -> Spans:
        return decoded(self.owed) if self.owed else Spans.of()


class RecordStore:
    """The records of one table. `folder` is their directory in the job's store."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder

    def newest(self) -> AuditRecord | None:
        """Returns the newest record, None if there is none. Raises RecordChanged, and NoKey without the key."""
        number = max(self._numbers(), default=0)
        if not number:
            return None
        data = self._store.read(self._path(number))
        seal, _, body = data.partition(b"\n")
        if not hmac.compare_digest(seal, _seal(body, audit_key())):
            raise RecordChanged(f"{self._store.uri(self._path(number))} was changed, or made with another key")
        return msgspec.msgpack.decode(body, type=AuditRecord)

    def append(self, record: AuditRecord) -> bool:
        """Creates the record, and deletes what it replaces. Returns False if another audit was faster."""
        body = msgspec.msgpack.encode(record)
        path = self._path(record.number)
        if self._store.create(path, _seal(body, audit_key(make=True)) + b"\n" + body) is not Created.CREATED:
            return False
        pages = {self._page(file.name) for file in record.files if file.page}
        for old in self._store.list(self._folder):
            if old != path and old not in pages:
                self._store.delete(old)
        return True

    def spans(self, file: SeenFile) -> Spans:
        if not file.page:
            return decoded(file.spans)
        path = self._page(file.name)
        try:
            data = self._store.read(path)
        except FileNotFoundError:
            data = b""
        if hashlib.sha256(data).hexdigest() != file.page:
            raise RecordChanged(f"{self._store.uri(path)} was {'changed' if data else 'deleted'}")
        return decoded(data)

    def seen(self, name: str, size: int, checksum: str, read: int, spans: Spans) -> SeenFile:
        """Returns the entry of a file. The spans of a large one are written now, and count with the record."""
        spans = summed([spans])
        epochs = spans.epochs
        first, last = (int(epochs[0]), int(epochs[-1])) if len(epochs) else (0, 0)
        data = encoded(spans)
        if size < PAGE_BYTES:
            return SeenFile(name, size, checksum, first, last, read, data)
        self._store.write(self._page(name), data)
        self._store.sync([self._page(name)])
        return SeenFile(name, size, checksum, first, last, read, b"", hashlib.sha256(data).hexdigest())

    def _numbers(self) -> Iterable[int]:
        names = (path.rpartition("/")[2] for path in self._store.list(self._folder))
        return [int(name) for name in names if name.isdecimal()]

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:010d}"

    def _page(self, name: str) -> str:
        return f"{self._folder}/{name}.spans"


def _seal(body: bytes, key: bytes) -> bytes:
    return hmac.new(key, body, hashlib.sha256).hexdigest().encode()


class Memory:
    """What this machine remembers of its audits, outside of the store: the number of the newest record of each table.

    The text of a job's id and a table is the key. Losing this file loses nothing but the notice of a record that was
    replaced by an older one.
    """

    def __init__(self) -> None:
        self._path: Path = state_folder() / MEMORY

    def last(self, job_id: str, table: str) -> int:
        return self._all().get(f"{job_id} {table}", 0)

    def remember(self, job_id: str, table: str, number: int) -> None:
        known = self._all() | {f"{job_id} {table}": number}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft = self._path.with_name(f".{MEMORY}")
            draft.write_bytes(msgspec.json.encode(known))
            draft.replace(self._path)

    def _all(self) -> dict[str, int]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, int])
        except (OSError, msgspec.MsgspecError):
            return {}
