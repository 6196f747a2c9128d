"""The epoch log in a store: claims a job and publishes epochs.

Invariants: records are only created, never changed. Each call tries once; if the outcome is unknown, the caller repeats
the call. `trim` deletes old epoch records and never a fence: the record after the last one of a generation is a fence,
so a JobMaster that was replaced finds it there whenever it wakes up. A fence counts only if it is the newest record
after it was created: one that comes late may be created in the place of a deleted record.

The store may be away: where it was mounted there is an empty folder, or another server is at its address. So a record
is created, and counts, only beside the first one of the log, which stays for good. A look at the last one would not do:
a record that was created while the store went is left in that folder, and is found there when the store goes again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import msgspec

from engine.core.errors import CorruptSnapshot, Fenced, ForeignSnapshot, StoreError, TargetTaken
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.protocol.epoch_records import Claimed, Created, LogRecord, RecordKind, epoch_after, fence_after
from engine.protocol.manifest import Manifest, ManifestRef
from engine.snapshot.manifests import decode_manifest
from engine.snapshot.statefile import checksum
from engine.store.failpoints import Point, failpoint
from engine.store.reading import content

KEPT_RECORDS = 1_000
"""The newest records stay, whatever they are, for whoever wants to know what happened."""


@dataclass(frozen=True)
class EpochLog:
    """`begun`: the log is known to have records. If none is there, the store is away, and this is no new job.

    `sign`: a file that whoever started the job has put into its store. The first record is created only beside it: a
    JobMaster that was started while the store was away has found no log, and must not begin one where the store was.
    """

    store: Store
    paths: JobPaths
    begun: bool = False
    sign: str = ""

    def last(self) -> LogRecord | None:
        """Returns the newest record. Raises CorruptSnapshot if it can't be read: nothing may be appended after it."""
        last = self._record(self._last_number())
        if last is None and self.begun:
            raise StoreError(
                f"job {self.paths.job!r} has run before, but no record of its log is there: {self._mounted} The job "
                "waits for it. If the store was emptied on purpose, cancel the job and start it again"
            )
        if last is not None:
            self.check_here()
        return last

    def check_here(self) -> None:
        """Raises a StoreError unless the store is the one that holds this log."""
        if not self._holds(self.paths.log_record(1)):
            raise StoreError(f"the first record of the log of job {self.paths.job!r} is gone: {self._mounted}")

    def _is_beside(self, number: int) -> bool:
        """Says whether the store holds what the record of this number is created beside."""
        beside = self.paths.log_record(1) if number > 1 else self.sign
        return not beside or self._holds(beside)

    def _holds(self, path: str) -> bool:
        return self.store.sizes([path]) != [None]

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

    def refs(self, last: LogRecord) -> list[ManifestRef]:
        """Returns the epochs of the log, newest first. `last` is a record that was the newest a moment ago.

        Raises CorruptSnapshot if a record can't be read. Raises a StoreError if one is missing that nobody deletes:
        then the store was away meanwhile, as a mount may be, and the epochs that were found are not all.
        """
        numbers = self._numbers()
        contents = self.store.read_all([self.paths.log_record(number) for number in numbers])
        lost = max((number for number, data in zip(numbers, contents, strict=True) if data is None), default=0)
        if last.number not in numbers or (lost and not self._may_be_trimmed(lost, self._last_number())):
            raise StoreError(f"record {lost or last.number} of the job's log is missing: {self._mounted}")
        records = [self._decoded(number, data) for number, data in zip(numbers, contents, strict=True)]
        return [ref for record in records for ref in self._published_by(record)]

    def rewinds(self) -> list[LogRecord]:
        """Returns all rewinds, oldest first. None of them is ever deleted."""
        numbers = sorted(self._numbers())
        contents = self.store.read_all([self.paths.log_record(number) for number in numbers])
        records = map(self._decoded, numbers, contents)
        return [record for record in records if record is not None and record.kind is RecordKind.REWIND]

    def begins_elsewhere(self) -> bool:
        """Says whether the job began with the state, and so with the totals, of another one."""
        number = 1
        while (record := self._record(number)) is not None:
            if record.newest is not None:
                return record.newest.epoch == 0
            number += 1
        return False

    def _epoch_at(self, number: int) -> list[ManifestRef]:
        return self._published_by(self._record(number))

    def _published_by(self, record: LogRecord | None) -> list[ManifestRef]:
        """Returns the epoch that a record published; none if it is a fence, or missing."""
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

        The first record stays, because it names the job and the state that a fork began with. So does each fence, each
        rewind, by which an audit knows what tables hide, and each record that can't be read.
        """
        listed = self._listed()
        newest = max(listed, default=0)
        return sum(self._forget(number, kept_from) for number in listed if self._may_be_trimmed(number, newest))

    @staticmethod
    def _may_be_trimmed(number: int, newest: int) -> bool:
        return 1 < number < newest - KEPT_RECORDS

    def _forget(self, number: int, kept_from: int) -> bool:
        try:
            record = self._record(number)
        except CorruptSnapshot:
            return False
        if record is None or record.kind is not RecordKind.EPOCH:
            return False
        if record.newest is not None and record.newest.epoch >= kept_from:
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
        return self._decoded(number, self._content(number))

    def _decoded(self, number: int, data: bytes | None) -> LogRecord | None:
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
        if last is not None and not self._made_durable(last):
            return None  # nothing may be built on a record that can vanish
        if last is not None and last.owner == owner:  # an earlier try succeeded, but its answer was lost
            return Claimed(last) if self._is_newest(last) else None
        fence = fence_after(last, owner)
        return Claimed(fence) if self.append_fence(fence) is Created.CREATED else None

    def _made_durable(self, record: LogRecord) -> bool:
        """Makes the name of a record durable. Returns False if it is gone: trimmed, forgotten, or the store is away."""
        path = self.paths.log_record(record.number)
        try:
            self.store.sync([path])
        except StoreError:
            if self._holds(path):
                raise
            return False
        return True

    def append_fence(self, fence: LogRecord) -> Created:
        """Appends a fence. Returns EXISTS also if the log goes on behind it, where it fences nobody.

        A process may sleep for long between its look at the last record and this create. In the place of the next
        record it then finds another's, or nothing, because `trim` has deleted that record since.
        """
        outcome = self.append(fence)
        return Created.EXISTS if outcome is Created.CREATED and not self._is_newest(fence) else outcome

    def holds(self, record: LogRecord) -> bool:
        """Says whether this record is in the log, also if others have gone on behind it."""
        return self._content(record.number) == msgspec.json.encode(record)

    @contextmanager
    def owned_by(self, record: LogRecord) -> Iterator[None]:
        """Runs what only the owner of the newest record may do.

        Raises Fenced if a target is taken and the log goes on behind this record: a successor may have written there.
        """
        try:
            yield
        except TargetTaken as error:
            if self._is_newest(record):
                raise
            raise Fenced(f"the log goes on behind record {record.number}: another JobMaster has taken over") from error

    def _is_newest(self, record: LogRecord) -> bool:
        return self._last_number() == record.number

    @failpoint(before=Point.BEFORE_RECORD, after=Point.AFTER_RECORD)
    def publish(self, last: LogRecord, manifest: ManifestRef) -> LogRecord | None:
        """Appends the epoch record; creating it is the commit point.

        Returns None if the outcome is unknown; the caller then calls again with the same arguments. Raises Fenced if
        another JobMaster has taken over, and a StoreError if the log is gone: a mount may be, and leave a folder.
        """
        # If only the last record is gone, `trim` has deleted it since: the next one is then the fence of a successor.
        there = self._content(last.number)
        if there is None and self._content(last.number + 1) is None:
            raise StoreError(f"record {last.number} of the job's log is gone: {self._mounted}")
        if there is not None and there != msgspec.json.encode(last) and self._is_of_another(last):
            raise Fenced(f"log record {last.number} is another JobMaster's: another store was mounted in its place")
        record = epoch_after(last, manifest)
        match self.append(record):
            case Created.CREATED:
                return record
            case Created.EXISTS:
                raise Fenced(f"log record {record.number} belongs to another JobMaster, which has taken over this job")
            case Created.UNKNOWN:
                return None

    def _is_of_another(self, record: LogRecord) -> bool:
        """Says whether another process made the record of this number. One that can't be read is nobody's."""
        try:
            there = self._record(record.number)
        except CorruptSnapshot:
            return False
        return there is not None and there.owner != record.owner

    def append(self, record: LogRecord) -> Created:
        """Creates a record. Raises a StoreError if the store is away, before anything is created.

        Returns UNKNOWN also if the store went or came back meanwhile: the answer may be that of an empty folder.
        """
        if not self._is_beside(record.number):
            raise StoreError(f"record {record.number} of the job's log can't be created: {self._mounted}")
        outcome = self._create(record)
        try:
            here = self._holds(self.paths.log_record(record.number)) and self._is_beside(record.number)
        except StoreError:
            here = False
        return outcome if here else Created.UNKNOWN

    def _create(self, record: LogRecord) -> Created:
        data = msgspec.json.encode(record)
        path = self.paths.log_record(record.number)
        outcome = self.store.create(path, data)
        if outcome is not Created.EXISTS:
            return outcome
        try:
            return Created.CREATED if self.store.read(path) == data else Created.EXISTS
        except (StoreError, FileNotFoundError):
            return Created.UNKNOWN  # the record may be this process's own, of an earlier try

    @failpoint(before=Point.BEFORE_MANIFEST)
    def write_manifest(self, manifest: Manifest, folder: str | None = None) -> ManifestRef:
        """Writes the manifest beside the state files; `folder`: where they are, if not in the folder of the attempt."""
        own = self.paths.manifest(manifest.attempt, manifest.checkpoint)
        path = f"{folder}/manifest.json" if folder else own
        data = msgspec.json.encode(manifest)
        self.store.write(path, data)
        self.store.sync([path])
        return ManifestRef(path, checksum(data), manifest.epoch, manifest.checkpoint)

    def check_files(self, ref: ManifestRef, manifest: Manifest) -> None:
        """Raises a StoreError unless the manifest and its state files are there.

        Slots have seen their files durable, but perhaps in an empty folder that was in the place of the store.
        """
        self.check_here()
        files = {file.path: file.size for state in manifest.subtasks for file in state.files}
        paths = [ref.path, *files]
        for path, found in zip(paths, self.store.sizes(paths), strict=True):
            if found is None:
                raise StoreError(f"{path} is gone: was the store away when it was written?")
            if found != files.get(path, found):
                raise StoreError(f"{path} has {found} bytes, and {files[path]} were written")

    def read_manifest(self, ref: ManifestRef) -> Manifest:
        """Returns a manifest. Raises CorruptSnapshot or ForeignSnapshot if the job can't go on from it."""
        self._check_own(ref.path.partition("/")[0])
        return _manifest(ref, self.read_checked(ref.path, ref.checksum))

    def read_manifests(self, refs: Sequence[ManifestRef]) -> list[Manifest | None]:
        """Returns manifests as `read_manifest` does; None for those that are deleted, as retention does."""
        for ref in refs:
            self._check_own(ref.path.partition("/")[0])
        contents = self.store.read_all([ref.path for ref in refs])
        if None in contents:
            self.check_here()
        return [
            _manifest(ref, _checked(ref.path, data, ref.checksum)) if data is not None else None
            for ref, data in zip(refs, contents, strict=True)
        ]

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
        data = content(self.store, path)
        if data is None:
            if self._content(1) is None:
                raise StoreError(f"{path} is missing, and so is the first record of the job's log: {self._mounted}")
            data = content(self.store, path)  # again: the store was away, or the file is missing
        if data is None:
            raise CorruptSnapshot(f"{path} is missing")
        return _checked(path, data, expected)

    def _content(self, number: int) -> bytes | None:
        return content(self.store, self.paths.log_record(number))


def _checked(path: str, data: bytes, expected: str) -> bytes:
    if checksum(data) != expected:
        raise CorruptSnapshot(f"{path} ({len(data)} bytes) is not what was written: its checksum differs")
    return data


def _manifest(ref: ManifestRef, data: bytes) -> Manifest:
    manifest = decode_manifest(data, ref.path)
    assert manifest.epoch == ref.epoch and manifest.checkpoint == ref.checkpoint
    return manifest
