"""Savepoints: self-contained folders that can be moved, and from which jobs begin (D5, D9).

    <folder>/savepoint.json     made last, by create-if-absent: without it there is no savepoint
             <writer>/          manifest, state files and the job's inputs; all paths are relative to the folder
             <writer>.seal      made before `savepoint.json`: its copy, or a note that the writer was given up

Invariants: a savepoint never changes once `savepoint.json` exists. Each writer has a subfolder of its own, so a
JobMaster that was replaced while it wrote harms nothing. Only `delete` removes a savepoint. Whoever deletes files of a
writer takes its seal away first: writes there that it was given up. Whoever makes `savepoint.json` looks at the seal
afterwards, and withdraws the savepoint if the seal is gone. So a process that slept in between makes none of deleted
files. Nobody withdraws a savepoint that somebody else has made, unless files of it are gone, too (`is_husk`). A writer
that died after it had sealed its files, all of which are there, has a savepoint that only lacks its head: `complete`
makes it, since the seal says what the head is.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from urllib.parse import unquote

import msgspec

from engine.core.errors import CorruptSnapshot, ForeignSnapshot, NoSavepoint, SavepointExists, StoreError
from engine.core.ports import Store
from engine.protocol.epoch_records import Created
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Manifest, SubtaskState
from engine.snapshot.copying import copy_files, copy_state
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.inputs import copy_inputs, inputs_of
from engine.snapshot.manifests import decode_manifest
from engine.snapshot.statefile import checksum

FORMAT = 1
HEAD = "savepoint.json"
_GIVEN_UP = b"given up"
_TRIES = 5
_PROBE = "probe-"


class Savepoint(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `savepoint.json`.

    `epoch` is the newest epoch of the job when the savepoint was taken. If the job `stopped` with it, the savepoint is
    that epoch; otherwise its state lies behind that epoch, and its output since then is the next epoch's. `inputs` are
    the files that the job reads from its own folder, with their checksums. `seal` is the checksum of all other fields;
    savepoints of earlier versions have none.
    """

    name: str
    job: str
    job_id: str
    epoch: int
    checkpoint: int
    stopped: bool
    created_ms: int
    state_bytes: int
    manifest: str
    checksum: str
    inputs: dict[str, str]
    format: int = FORMAT
    seal: str = ""

    def sealed(self) -> Savepoint:
        return msgspec.structs.replace(self, seal=self._digest())

    @property
    def intact(self) -> bool:
        return self.seal in ("", self._digest())

    def _digest(self) -> str:
        return checksum(msgspec.json.encode(msgspec.structs.replace(self, seal="")))


@dataclass(frozen=True)
class Origin:
    """The job that a savepoint is taken of. `epoch`: its newest."""

    log: EpochLog
    job_id: str
    epoch: int


@dataclass(frozen=True)
class Draft:
    """A savepoint whose files are all written, except the last manifest and the head: it does not exist yet."""

    writer: str
    job_id: str
    subtasks: list[SubtaskState]
    inputs: dict[str, str]


@dataclass(frozen=True)
class SavepointFolder:
    """A folder that holds one savepoint, or shall hold one. `store` begins at the folder itself."""

    store: Store

    @property
    def place(self) -> str:
        """The address of the folder, as people write it: a path, or the URL of a bucket."""
        return shown_place(self.store.uri(""))

    def head(self) -> Savepoint:
        """Raises NoSavepoint, CorruptSnapshot, or ForeignSnapshot if it is of another version, if it can't be read."""
        try:
            data = self.store.read(HEAD)
        except FileNotFoundError:
            raise NoSavepoint(f"there is no savepoint in {self.place}: it has no {HEAD}") from None
        try:
            version = msgspec.json.decode(data, type=_Version)
            head = msgspec.json.decode(data, type=Savepoint) if version.format == FORMAT else None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptSnapshot(f"{self.place}/{HEAD} is damaged ({error})") from error
        if head is not None:
            if not head.intact:
                raise CorruptSnapshot(f"{self.place}/{HEAD} is not what was written: its checksum differs")
            return head
        raise ForeignSnapshot(
            f"the savepoint in {self.place} has format {version.format}, and this version of Weir reads {FORMAT}: use "
            "the version that wrote it"
        )

    def exists(self) -> bool:
        return self._head_bytes() is not None

    def manifest(self) -> Manifest:
        """Returns the manifest. The paths of its state files are relative to the folder."""
        head = self.head()
        return decode_manifest(self._read_checked(head.manifest, head.checksum), f"{self.place}/{head.manifest}")

    def _read_checked(self, path: str, expected: str) -> bytes:
        """The head was read before, so the folder is there, and a file that is not has been deleted."""
        try:
            data = self.store.read(path)
        except FileNotFoundError:
            raise CorruptSnapshot(f"{self.place}/{path} is missing") from None
        if checksum(data) != expected:
            raise CorruptSnapshot(f"{self.place}/{path} is not what was written: its checksum differs")
        return data

    def write(self, name: str, manifest: Manifest, origin: Origin, *, stopped: bool) -> Savepoint:
        """Makes a savepoint of this snapshot. Raises SavepointExists if there is one.

        Any other failure leaves no savepoint, and no files if the store still deletes; but if the store does not say
        whether it made the savepoint, the files stay.
        """
        return self.finish(self.prepare(manifest, origin), name, manifest, origin.epoch, stopped=stopped)

    def prepare(self, manifest: Manifest, origin: Origin) -> Draft:
        """Copies the state and the job's inputs. There is no savepoint before `finish`.

        If it fails, it has deleted what was copied, and what slots have written here for it.
        """
        writer = writer_of(origin.job_id, manifest.attempt, manifest.checkpoint)
        try:
            if self.exists():
                raise self._taken()
            copied = copy_state(manifest, origin.log.read_checked, self.store, writer, source=origin.log.store)
            inputs = inputs_of(origin.log.store, origin.log.paths, writer)
            checksums = copy_files(origin.log.store.read, self.store, inputs)
            self._write_manifest(writer, copied)  # so that a place without room is found out now, also without state
        except FileNotFoundError as error:  # an older version of a static table, deleted meanwhile
            self.forget(writer)
            raise StoreError(f"an input was deleted while it was copied: {error}; try again") from error
        except (StoreError, CorruptSnapshot, SavepointExists):
            self.forget(writer)
            raise
        return Draft(writer, origin.job_id, copied.subtasks, checksums)

    def finish(self, draft: Draft, name: str, manifest: Manifest, epoch: int, *, stopped: bool) -> Savepoint:
        """Makes the savepoint of the files that `prepare` returned. `epoch` is the job's newest.

        If it fails, it has deleted these files, unless the savepoint may exist or the store does not delete now.
        """
        try:
            copied = msgspec.structs.replace(manifest, subtasks=draft.subtasks)
            to, written = self._write_manifest(draft.writer, copied)
            head = Savepoint(
                name=name,
                job=manifest.job,
                job_id=draft.job_id,
                epoch=epoch,
                checkpoint=manifest.checkpoint,
                stopped=stopped,
                created_ms=manifest.created_ms,
                state_bytes=manifest.state_bytes,
                manifest=to,
                checksum=written,
                inputs=draft.inputs,
            ).sealed()
            data = msgspec.json.encode(head)
            if not self._sealed(draft.writer, data):
                raise StoreError(f"the files of {self.place} were deleted meanwhile: another JobMaster runs the job")
            if not self._is_whole(head):
                raise StoreError(
                    f"files of {self.place} are gone, or not what was written a moment ago: did somebody delete or "
                    "change them, or is the store away? Take the savepoint again"
                )
            made = self._made(draft.writer, data)
        except UnknownSavepoint:
            raise  # the savepoint may exist, or appear later: its files stay
        except StoreError:
            self.forget(draft.writer)
            raise
        if not made:
            self.forget(draft.writer)
            raise self._taken()
        return head

    def _write_manifest(self, writer: str, manifest: Manifest) -> tuple[str, str]:
        """Returns the path and the checksum of the manifest."""
        path, data = f"{writer}/manifest.json", msgspec.json.encode(manifest)
        self.store.write(path, data)
        self.store.sync([path])
        return path, checksum(data)

    def check_new(self) -> None:
        """Raises SavepointExists if there is a savepoint here, a StoreError if none can be written."""
        if self.exists():
            raise self._taken()
        probe = f"{_PROBE}{secrets.token_hex(8)}"
        try:
            self.store.write(probe, b"")
            self.store.delete(probe)
        except StoreError as error:  # nobody knows this file
            raise StoreError(str(error).replace(f"/{probe}", "")) from error

    def _made(self, writer: str, data: bytes) -> bool:
        """Creates `savepoint.json` of a writer that has sealed its files. Returns False if there is another one.

        Raises `DeletedMeanwhile` if somebody has deleted the savepoint or its files since they were sealed.
        """
        unknown = f"the store does not say whether {self.place}/{HEAD} was created: look with weir savepoints"
        outcome = self._created(data, unknown)
        if outcome is None:
            return False
        try:
            if self._seal(writer) == data:
                return True
            if self._head_bytes() == data and (outcome is Created.CREATED or self.is_husk()):
                self.store.delete(HEAD)
        except StoreError as error:
            raise UnknownSavepoint(f"{unknown} ({error})") from error
        raise DeletedMeanwhile(f"somebody has deleted the files of {self.place} meanwhile: there is no savepoint")

    def _created(self, data: bytes, unknown: str) -> Created | None:
        """Creates `savepoint.json`, and says whether it was there already. Returns None if it is another one."""
        for number in range(_TRIES):
            try:
                outcome = self.store.create(HEAD, data)
            except StoreError as error:
                if number:  # an earlier try may still be carried out
                    raise UnknownSavepoint(f"{unknown} ({error})") from error
                raise
            match outcome:
                case Created.CREATED:
                    return outcome
                case Created.EXISTS if (there := self._head_bytes()) is not None:
                    return outcome if there == data else None
        raise UnknownSavepoint(unknown)

    def is_husk(self) -> bool:
        """Says whether `savepoint.json` is left of a savepoint whose seal was taken away and whose files were deleted.

        It was made by a process that slept while that happened, and that died before it looked at the seal. If the seal
        is there and files are gone, this is a damaged savepoint and no husk: its owner has to hear of that.
        """
        data = self._head_bytes()
        if data is None:
            return False
        head = self.head()
        gone = head.seal != "" and self._seal(head.manifest.split("/", 1)[0]) != data
        return gone and not self._is_whole(head)

    def _head_bytes(self) -> bytes | None:
        try:
            return self.store.read(HEAD)
        except FileNotFoundError:
            return None

    def _seal(self, writer: str) -> bytes | None:
        try:
            return self.store.read(f"{writer}.seal")
        except FileNotFoundError:
            return None

    def give_up(self, writer: str) -> bool:
        """Makes sure that this writer makes no savepoint here any more. Returns False if it may, or already has.

        It may if all its files are there and sealed, and there is no other savepoint. The seal stays, as long as
        anybody may wake up who has this writer's name.
        """
        if self._sealed(writer, _GIVEN_UP):
            return True
        if self.may_be_made_by(writer):
            return False
        self.store.write(f"{writer}.seal", _GIVEN_UP)
        return not self._has_made(writer)  # it may have woken up in this moment

    def may_be_made_by(self, writer: str) -> bool:
        """Says whether the savepoint here is this writer's, or only lacks its head and may become so."""
        return self._names(writer) if self.exists() else self.is_sealed(writer)

    def _has_made(self, writer: str) -> bool:
        """Says whether the savepoint that exists here is this writer's."""
        return self.exists() and self._names(writer)

    def _names(self, writer: str) -> bool:
        return self.head().manifest.startswith(f"{writer}/")

    def is_sealed(self, writer: str) -> bool:
        """Says whether a writer has written all files of a savepoint, so that only its head may be missing."""
        return self._sealed_head(writer) is not None

    def complete(self, writer: str) -> bool:
        """Makes the savepoint of a writer that has sealed its files and died. Returns False if that can't be any more.

        If the writer only sleeps, it finds its own savepoint when it wakes up.
        """
        data = self._sealed_head(writer)
        try:
            return data is not None and self._made(writer, data)
        except DeletedMeanwhile:
            return False

    def _sealed_head(self, writer: str) -> bytes | None:
        """Returns the head that the seal of a writer repeats; None: there is none, or a file is missing or damaged."""
        data = self._seal(writer)
        try:
            head = msgspec.json.decode(data or b"", type=Savepoint)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        own = head.seal and head.intact and head.manifest.startswith(f"{writer}/")
        return data if own and self._is_whole(head) else None

    def _is_whole(self, head: Savepoint) -> bool:
        """Says whether all files of a savepoint are there."""
        try:
            manifest = self._read_checked(head.manifest, head.checksum)
            states = decode_manifest(manifest, f"{self.place}/{head.manifest}").subtasks
        except (CorruptSnapshot, ForeignSnapshot):
            return False
        due = {file.path: file.size for state in states for file in state.files}
        sizes = self.store.sizes([*due, *head.inputs])
        return sizes[: len(due)] == list(due.values()) and None not in sizes

    def _sealed(self, writer: str, seal: bytes) -> bool:
        """Seals the files of a writer, and says whether the seal is this one."""
        path = f"{writer}.seal"
        for _ in range(_TRIES):
            match self.store.create(path, seal):
                case Created.CREATED:
                    return True
                case Created.EXISTS:
                    return self._seal(writer) == seal
        raise StoreError(f"the store does not say whether {self.place}/{path} was created")

    def forget(self, writer: str) -> None:
        """Deletes what a failed writer left, unless somebody else has completed its savepoint."""
        try:
            if self._has_made(writer):
                return
            seal = self._seal(writer)
            self._take_seal_away(writer)
            if not self._has_made(writer):
                self.store.delete(writer)
                self.store.delete(f"{writer}.seal")
            elif seal is not None:  # completed in this moment: nothing was deleted, so it stays a savepoint
                self.store.write(f"{writer}.seal", seal)
        except (StoreError, CorruptSnapshot, ForeignSnapshot, NoSavepoint):
            pass  # files without a savepoint are in nobody's way

    def copy_to(self, store: Store, folder: str) -> Manifest:
        """Copies the state and the inputs into this folder of a job's store.

        Returns the manifest with the new paths. Nothing of it counts before the job's log names it.
        """
        head = self.head()
        manifest = copy_state(self.manifest(), self._read_checked, store, folder)
        inputs = copy_inputs(lambda path: self._read_checked(path, head.inputs[path]), head.inputs, store, folder)
        return msgspec.structs.replace(manifest, inputs=inputs)

    def delete(self) -> None:
        """Deletes the savepoint. Its head goes before its files, so what a crash leaves is no savepoint."""
        writer = self.head().manifest.split("/", 1)[0]
        self._take_seal_away(writer)
        self.store.delete(HEAD)
        self.store.delete(writer)
        self.store.delete(f"{writer}.seal")

    def _take_seal_away(self, writer: str) -> None:
        """Keeps everybody from making a savepoint of this writer's files, which are deleted next.

        If this process dies before it has deleted all of them, `weir gc` deletes the rest. Raises a StoreError if the
        seal stays: then none of them may be deleted.
        """
        seal = f"{writer}.seal"
        try:
            self.store.write(seal, _GIVEN_UP)
        except StoreError:  # who deletes because the store is full must not need room for it
            self.store.delete(seal)

    def _taken(self) -> SavepointExists:
        return SavepointExists(
            f"{self.place} already holds a savepoint: choose another name, or delete it with weir savepoint delete"
        )


def writer_of(job_id: str, attempt: AttemptId, checkpoint: int) -> str:
    """Returns the name of the subfolder in which one attempt of a job writes one savepoint."""
    return f"{job_id}-{attempt.generation:04d}-{attempt.attempt:04d}-{checkpoint:07d}"


def is_probe(name: str) -> bool:
    """Says whether a file directly in the folder of a savepoint only shows that its writer may write there."""
    return re.fullmatch(f"{_PROBE}[0-9a-f]{{16}}", name) is not None


def writer_from(name: str) -> tuple[str, int] | None:
    """Returns the job id and the generation of a writer; None if the subfolder is nobody's."""
    parts = name.split("-")
    return (parts[0], int(parts[1])) if len(parts) == 4 and parts[1].isdecimal() else None


def shown_place(uri: str) -> str:
    """Returns the address of a folder in a form that `--to` and `--from` take."""
    scheme, _, rest = uri.rstrip("/").partition("://")
    if scheme == "file":
        return unquote(rest)
    return f"s3://{unquote(rest)}" if scheme == "s3a" else uri.rstrip("/")


class _Version(msgspec.Struct):
    format: int


class UnknownSavepoint(StoreError):
    """The store does not say whether the savepoint exists."""


class DeletedMeanwhile(StoreError):
    """Somebody has deleted the files of a savepoint before it was made, or right afterwards."""
