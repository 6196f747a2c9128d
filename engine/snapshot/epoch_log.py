"""The epoch log in a store: claims a job and publishes epochs.

Invariant: records are only created, never changed. Each call tries once; if the outcome is unknown, the caller repeats
the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from engine.core.errors import CorruptSnapshot, Fenced, StoreError
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.protocol.epoch_records import Claimed, Created, LogRecord, RecordKind, epoch_after, fence_after
from engine.protocol.manifest import Manifest, ManifestRef
from engine.snapshot.statefile import checksum


@dataclass(frozen=True)
class EpochLog:
    store: Store
    paths: JobPaths

    def last(self) -> LogRecord | None:
        """Returns the newest record. The store's list only says where to look: it may lack the newest names."""
        names = self.store.list(self.paths.log_directory())
        number = self.paths.parse_log_record(names[-1]) if names else 0
        found = self._record(number)
        while found is None and number > 0:  # the store has forgotten a name that was not durable
            number -= 1
            found = self._record(number)
        while (later := self._record(number + 1)) is not None:
            found, number = later, number + 1
        return found

    def epochs(self) -> Iterator[ManifestRef]:
        """Returns the epochs of the log, newest first. The snapshots of older ones may be deleted."""
        record = self.last()
        while record is not None:
            begins_a_fork = record.number == 1  # its fence names the copied state
            if record.newest is not None and (record.kind is not RecordKind.FENCE or begins_a_fork):
                yield record.newest
            record = self._record(record.number - 1)

    def _record(self, number: int) -> LogRecord | None:
        try:
            return msgspec.json.decode(self.store.read(self.paths.log_record(number)), type=LogRecord)
        except FileNotFoundError:
            return None

    def claim(self, owner: str) -> Claimed | None:
        """Appends a fence after the last record.

        Returns None if another process appended first or the outcome is unknown; the caller then calls again.
        """
        last = self.last()
        if last is not None and self.append(last) is not Created.CREATED:
            return None  # its name may not be durable yet, and nothing may be built on a record that can vanish
        if last is not None and last.owner == owner:
            return Claimed(last)  # an earlier try of this process succeeded, but its answer was lost
        record = fence_after(last, owner)
        return Claimed(record) if self.append(record) is Created.CREATED else None

    def publish(self, last: LogRecord, manifest: ManifestRef) -> LogRecord | None:
        """Appends the epoch record; creating it is the commit point.

        Returns None if the outcome is unknown; the caller then calls again with the same arguments. Raises Fenced if
        another JobMaster has taken over.
        """
        record = epoch_after(last, manifest)
        match self.append(record):
            case Created.CREATED:
                return record
            case Created.EXISTS:
                raise Fenced(f"log record {record.number} belongs to another JobMaster, which has taken over this job")
            case Created.UNKNOWN:
                return None

    def append(self, record: LogRecord) -> Created:
        data = msgspec.json.encode(record)
        path = self.paths.log_record(record.number)
        outcome = self.store.create(path, data)
        if outcome is not Created.EXISTS:
            return outcome
        try:
            return Created.CREATED if self.store.read(path) == data else Created.EXISTS
        except (StoreError, FileNotFoundError):
            return Created.UNKNOWN  # the record may be this process's own, of an earlier try

    def write_manifest(self, manifest: Manifest, folder: str | None = None) -> ManifestRef:
        """Writes the manifest beside the state files; `folder`: where they are, if not in the folder of the attempt."""
        own = self.paths.manifest(manifest.attempt, manifest.checkpoint)
        path = f"{folder}/manifest.json" if folder else own
        data = msgspec.json.encode(manifest)
        self.store.write(path, data)
        self.store.sync([path])
        return ManifestRef(path, checksum(data), manifest.epoch, manifest.checkpoint)

    def read_manifest(self, ref: ManifestRef) -> Manifest:
        manifest = msgspec.json.decode(read_checked(self.store, ref.path, ref.checksum), type=Manifest)
        assert manifest.epoch == ref.epoch and manifest.checkpoint == ref.checkpoint
        return manifest


def read_checked(store: Store, path: str, expected: str) -> bytes:
    try:
        data = store.read(path)
    except FileNotFoundError as error:
        raise CorruptSnapshot(f"{path} is missing") from error
    if checksum(data) != expected:
        raise CorruptSnapshot(f"{path} ({len(data)} bytes) is not what was written: its checksum differs")
    return data
