"""Savepoints in a store: self-contained folders that can be moved, and from which jobs begin (D5, D9).

    <folder>/savepoint.json     made last, by create-if-absent: without it there is no savepoint
             <writer>/          the manifest, the state files, and the job's inputs, by paths relative to the folder

Invariants: a savepoint never changes once `savepoint.json` exists. Each writer has a subfolder of its own, so a
JobMaster that was replaced while it wrote harms nothing. Only `delete` removes a savepoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from engine.core.errors import CorruptSnapshot, NoSavepoint, SavepointExists, StoreError
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.protocol.epoch_records import Created
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Manifest
from engine.snapshot.epoch_log import read_checked
from engine.snapshot.statefile import checksum

FORMAT = 1
_HEAD = "savepoint.json"
_TRIES = 5


class Savepoint(msgspec.Struct, frozen=True):
    """The content of `savepoint.json`.

    `epoch` is the newest epoch of the job when the savepoint was taken. `stopped`: the job stopped with it, so it is
    that epoch; otherwise its state is somewhere behind that epoch.
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
    inputs: list[str] = []
    format: int = FORMAT


@dataclass(frozen=True)
class SavepointFolder:
    """A folder that holds one savepoint, or shall hold it. `store` begins at the folder itself."""

    store: Store

    def head(self) -> Savepoint:
        """Reads what the savepoint is. Raises NoSavepoint if there is none, CorruptSnapshot if it is damaged."""
        try:
            data = self.store.read(_HEAD)
        except FileNotFoundError:
            raise NoSavepoint(f"there is no savepoint in {self.store.uri('')}: it has no file {_HEAD}") from None
        try:
            found = msgspec.json.decode(data, type=Savepoint)
        except msgspec.MsgspecError as error:
            raise CorruptSnapshot(f"{self.store.uri(_HEAD)} is damaged: {error}") from error
        if found.format != FORMAT:
            raise CorruptSnapshot(
                f"{self.store.uri('')} has format {found.format}, and this version of Weir reads {FORMAT}: use the "
                "version that wrote it"
            )
        return found

    def exists(self) -> bool:
        try:
            self.head()
        except NoSavepoint:
            return False
        return True

    def manifest(self) -> Manifest:
        """Reads the manifest; the paths of its state files are relative to the folder."""
        head = self.head()
        return msgspec.json.decode(read_checked(self.store, head.manifest, head.checksum), type=Manifest)

    def write(
        self, name: str, manifest: Manifest, job_id: str, epoch: int, stopped: bool, store: Store, paths: JobPaths
    ) -> Savepoint:
        """Copies the state files of this manifest, and the job's inputs, from `store`. Returns what was made.

        Raises SavepointExists if there is a savepoint. Otherwise a failure leaves no savepoint, and no files if the
        store still deletes.
        """
        if self.exists():
            raise _taken(self.store)
        writer = _writer(job_id, manifest.attempt, manifest.checkpoint)
        try:
            made = self._write(writer, name, manifest, job_id, epoch, stopped, store, paths)
        except StoreError:
            self._forget(writer)
            raise
        if made is None:
            self._forget(writer)
            raise _taken(self.store)
        return made

    def _write(
        self,
        writer: str,
        name: str,
        manifest: Manifest,
        job_id: str,
        epoch: int,
        stopped: bool,
        store: Store,
        paths: JobPaths,
    ) -> Savepoint | None:
        """Returns None if another writer has made a savepoint here."""
        copied: list[str] = []
        subtasks = []
        for state in manifest.subtasks:
            files = []
            for file in state.files:
                to = f"{writer}/{len(copied)}.{file.path.rsplit('/', 1)[-1]}"
                self.store.write(to, read_checked(store, file.path, file.checksum))
                copied.append(to)
                files.append(msgspec.structs.replace(file, path=to))
            subtasks.append(msgspec.structs.replace(state, files=files))
        inputs = list(_copy_inputs(store, paths, self.store, f"{writer}/inputs"))
        to = f"{writer}/manifest.json"
        data = msgspec.json.encode(msgspec.structs.replace(manifest, subtasks=subtasks))
        self.store.write(to, data)
        self.store.sync([*copied, *inputs, to])
        head = Savepoint(
            name=name,
            job=manifest.job,
            job_id=job_id,
            epoch=epoch,
            checkpoint=manifest.checkpoint,
            stopped=stopped,
            created_ms=manifest.created_ms,
            state_bytes=manifest.state_bytes,
            manifest=to,
            checksum=checksum(data),
            inputs=inputs,
        )
        return head if self._made(msgspec.json.encode(head)) else None

    def _made(self, data: bytes) -> bool:
        """Creates `savepoint.json`. Says whether it is ours, whatever became of the answers."""
        for _ in range(_TRIES):
            outcome = self.store.create(_HEAD, data)
            if outcome is Created.CREATED:
                return True
            if outcome is Created.EXISTS:
                return self.store.read(_HEAD) == data
        raise StoreError(
            f"the store does not say whether {self.store.uri(_HEAD)} was created: look with weir savepoints, and take "
            "another savepoint"
        )

    def _forget(self, writer: str) -> None:
        try:
            self.store.delete(writer)
        except StoreError:
            pass  # the files of a savepoint that does not exist are in nobody's way

    def delete(self) -> None:
        """Deletes the savepoint. Its head goes first: what is left after a crash is no savepoint."""
        self.head()
        self.store.delete(_HEAD)
        for path in sorted({path.split("/", 1)[0] for path in self.store.list("")}):
            self.store.delete(path)


def _taken(store: Store) -> SavepointExists:
    return SavepointExists(
        f"{store.uri('')} already holds a savepoint: choose another name, or delete it with weir savepoint delete"
    )


def _writer(job_id: str, attempt: AttemptId, checkpoint: int) -> str:
    return f"{job_id}-{attempt.generation:04d}-{attempt.attempt:04d}-{checkpoint:07d}"


def _copy_inputs(store: Store, paths: JobPaths, target: Store, folder: str) -> Iterator[str]:
    """Copies the inputs: the positions of DataFrame sources are positions in these files."""
    for old, name in zip(paths.inputs(), ("sources", "static"), strict=True):
        for path in store.list(old):
            to = f"{folder}/{name}{path.removeprefix(old)}"
            target.write(to, store.read(path))
            yield to


def copy_back(folder: SavepointFolder, target: Store, place: Callable[[int, str], str], paths: JobPaths) -> Manifest:
    """Copies state and inputs of a savepoint into a job's part of a store, and returns the manifest with the new paths.

    `place` says where the state file of this number and name goes. Nothing counts before the job's log names it.
    """
    head, manifest = folder.head(), folder.manifest()
    copied: list[str] = []
    subtasks = []
    for state in manifest.subtasks:
        files = []
        for file in state.files:
            to = place(len(copied), file.path.rsplit("/", 1)[-1])
            target.write(to, read_checked(folder.store, file.path, file.checksum))
            copied.append(to)
            files.append(msgspec.structs.replace(file, path=to))
        subtasks.append(msgspec.structs.replace(state, files=files))
    for path in sorted(head.inputs, key=lambda path: path.endswith(".json")):  # a record says that its files are there
        kind, rest = path.split("/inputs/", 1)[1].split("/", 1)
        to = f"{paths.inputs()[0 if kind == 'sources' else 1]}/{rest}"
        target.write(to, folder.store.read(path))
        copied.append(to)
    target.sync(copied)
    return msgspec.structs.replace(manifest, subtasks=subtasks)
