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
        names = self.store.list(self.paths.log_directory())
        if not names:
            return None
        return msgspec.json.decode(self.store.read(names[-1]), type=LogRecord)

    def epochs(self) -> Iterator[ManifestRef]:
        """Returns the epochs of the log, newest first. The snapshots of older ones may be deleted."""
        for path in reversed(self.store.list(self.paths.log_directory())):
            record = msgspec.json.decode(self.store.read(path), type=LogRecord)
            begins_a_fork = record.number == 1  # its fence names the copied state
            if record.newest is not None and (record.kind is not RecordKind.FENCE or begins_a_fork):
                yield record.newest

    def claim(self, owner: str) -> Claimed | None:
        """Appends a fence after the last record.

        Returns None if another process appended first or the outcome is unknown; the caller then calls again.
        """
        last = self.last()
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
