"""The epoch log in a store: claims a job and publishes epochs.

Invariants: records are only created, never changed. Each call tries once; if the outcome is unknown, the caller repeats
the call. `trim` deletes old epoch records and never a fence: the record after the last one of a generation is a fence,
so a JobMaster that was replaced finds it there whenever it wakes up. A fence counts only if it is the newest record
after it was created: one that comes late may be created in the place of a deleted record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from engine.core.errors import CorruptSnapshot, Fenced, ForeignSnapshot, StoreError
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.protocol.epoch_records import Claimed, Created, LogRecord, RecordKind, epoch_after, fence_after
from engine.protocol.manifest import Manifest, ManifestRef
from engine.snapshot.manifests import decode_manifest
from engine.snapshot.statefile import checksum

KEPT_RECORDS = 1_000
"""The newest records stay, whatever they are, for whoever wants to know what happened."""


@dataclass(frozen=True)
class EpochLog:
    """`begun`: the log is known to have records. If none is there, the store is away, and this is no new job."""

    store: Store
    paths: JobPaths
    begun: bool = False

    def last(self) -> LogRecord | None:
        """Returns the newest record. Raises CorruptSnapshot if it can't be read: nothing may be appended after it."""
        last = self._record(self._last_number())
        if last is None and self.begun:
            raise StoreError(
                f"job {self.paths.job!r} has run before, but no record of its log is there: {self._mounted}"
            )
        return last

    @property
    def _mounted(self) -> str:
        return f"is the store mounted at {self.store.uri(self.paths.job)}?"

    def _last_number(self) -> int:
        """Returns the number of the newest record, 0 if there is none.

        The store's list only says where to look: it may lack the newest names.
        """
        number = max(self._listed(), default=0)
        while number > 0 and self._content(number) is None:  # the store has forgotten a name that was not durable
            number -= 1
        while self._content(number + 1) is not None:
            number += 1
        return number

    def epochs(self) -> Iterator[ManifestRef]:
        """Returns the epochs of the log, newest first. The snapshots of older ones may be deleted.

        Records that are missing or can't be read are passed over.
        """
        for number in self._numbers():
            with suppress(CorruptSnapshot):
                yield from self._epoch_at(number)

    def refs(self) -> Iterator[ManifestRef]:
        """Returns the epochs of the log, newest first. Raises CorruptSnapshot if a record can't be read."""
        for number in self._numbers():
            yield from self._epoch_at(number)

    def _epoch_at(self, number: int) -> list[ManifestRef]:
        """Returns the epoch that a record published; none if it is a fence, or missing."""
        record = self._record(number)
        if record is None or record.newest is None:
            return []
        return [record.newest] if record.kind is not RecordKind.FENCE or self._begins(record) else []

    def _numbers(self) -> list[int]:
        """Returns the numbers of all records, newest first, and of some that may be missing.

        Older records are sparse. The list may lack new names, so the newest are looked for one by one.
        """
        last = self._last_number()
        return sorted({*self._listed(), *range(max(1, last - KEPT_RECORDS), last + 1)}, reverse=True)

    def _listed(self) -> list[int]:
        listed = map(self.paths.parse_log_record, self.store.list(self.paths.log_directory()))
        return [number for number in listed if number is not None]

    def trim(self, kept_from: int) -> int:
        """Deletes old records of epochs before `kept_from`, and returns how many.

        The first record stays, because it names the job and the state that a fork began with. So does each fence, and
        each record that can't be read.
        """
        listed = self._listed()
        newest = max(listed, default=0)
        return sum(self._forget(number, kept_from) for number in listed if 1 < number < newest - KEPT_RECORDS)

    def _forget(self, number: int, kept_from: int) -> bool:
        try:
            record = self._record(number)
        except CorruptSnapshot:
            return False
        if record is None or record.kind is RecordKind.FENCE or (record.newest and record.newest.epoch >= kept_from):
            return False
        self.store.delete(self.paths.log_record(number))
        return True

    def _begins(self, fence: LogRecord) -> bool:
        """Says whether the job begins at this fence with the state of another one: it is a fork, or of a savepoint."""
        if fence.newest is None or fence.newest.epoch:
            return False
        before = None
        with suppress(CorruptSnapshot, StoreError):
            before = self._record(fence.number - 1)
        return before is None or before.newest is None

    def _record(self, number: int) -> LogRecord | None:
        data = self._content(number)
        if data is None:
            return None
        try:
            record = msgspec.json.decode(data, type=LogRecord)
        except (msgspec.DecodeError, UnicodeDecodeError):
            record = None
        if record is None or record.number != number or not record.intact:
            raise CorruptSnapshot(
                f"{self.paths.log_record(number)} ({len(data)} bytes) is no record of the job's log: it was changed "
                "after it was written. Bring it back from a backup, or let another job go on from the newest epoch "
                "that can be read, with tables of its own: --fork NAME"
            )
        return record

    def claim(self, owner: str) -> Claimed | None:
        """Appends a fence after the last record.

        Returns None if another process appended first or the outcome is unknown; the caller then calls again.
        """
        last = self.last()
        if last is not None and self.append(last) is not Created.CREATED:
            return None  # its name may not be durable yet, and nothing may be built on a record that can vanish
        if last is not None and last.owner == owner:  # an earlier try succeeded, but its answer was lost
            return Claimed(last) if self._is_newest(last) else None
        fence = fence_after(last, owner)
        return Claimed(fence) if self.append_fence(fence) is Created.CREATED else None

    def append_fence(self, fence: LogRecord) -> Created:
        """Appends a fence. Returns EXISTS also if the log goes on behind it, where it fences nobody.

        A process may sleep for long between its look at the last record and this create. In the place of the next
        record it then finds another's, or nothing, because `trim` has deleted that record since.
        """
        outcome = self.append(fence)
        return Created.EXISTS if outcome is Created.CREATED and not self._is_newest(fence) else outcome

    def _is_newest(self, record: LogRecord) -> bool:
        return self._last_number() == record.number

    def publish(self, last: LogRecord, manifest: ManifestRef) -> LogRecord | None:
        """Appends the epoch record; creating it is the commit point.

        Returns None if the outcome is unknown; the caller then calls again with the same arguments. Raises Fenced if
        another JobMaster has taken over, and a StoreError if the log is gone: a mount may be, and leave a folder.
        """
        # If only the last record is gone, `trim` has deleted it since: the next one is then the fence of a successor.
        if self._content(last.number) is None and self._content(last.number + 1) is None:
            raise StoreError(f"record {last.number} of the job's log is gone: {self._mounted}")
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
        """Returns a manifest. Raises CorruptSnapshot or ForeignSnapshot if the job can't go on from it."""
        self._check_own(ref.path.partition("/")[0])
        manifest = decode_manifest(self.read_checked(ref.path, ref.checksum), ref.path)
        assert manifest.epoch == ref.epoch and manifest.checkpoint == ref.checkpoint
        return manifest

    def _check_own(self, job: str) -> None:
        """Raises ForeignSnapshot if the log was written by another job. Two jobs would then share files and tables."""
        here = self.paths.job
        if job != here:
            raise ForeignSnapshot(
                f"the log of job {here!r} is that of job {job!r}: its folder was copied or renamed. Give it its old "
                f"name, or delete it and let {here!r} begin with the state of {job!r}: start that one with "
                f"--fork {here}, or {here!r} with --from and a savepoint of {job!r}"
            )

    def read_checked(self, path: str, expected: str) -> bytes:
        """Returns the content of a file. Raises CorruptSnapshot if it is not what was written, or is missing.

        Raises a StoreError if the whole store is away, as a mount may be: then nothing is known about the file.
        """
        data = self._read(path)
        if data is None:
            if self._content(1) is None:
                raise StoreError(f"{path} is missing, and so is the first record of the job's log: {self._mounted}")
            data = self._read(path)  # again: the store was away, or the file is missing
        if data is None:
            raise CorruptSnapshot(f"{path} is missing")
        if checksum(data) != expected:
            raise CorruptSnapshot(f"{path} ({len(data)} bytes) is not what was written: its checksum differs")
        return data

    def _content(self, number: int) -> bytes | None:
        return self._read(self.paths.log_record(number))

    def _read(self, path: str) -> bytes | None:
        """Returns the content of a file; None if there is none."""
        try:
            return self.store.read(path)
        except FileNotFoundError:
            return None
