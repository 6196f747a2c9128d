"""Copies a snapshot, and a job's inputs, from one place to another: for savepoints, forks and going back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from engine.core.errors import CorruptSnapshot, StoreError
from engine.core.ports import Store
from engine.protocol.manifest import Manifest, StateFile
from engine.snapshot.statefile import checksum
from engine.store.below import Below

ReadChecked = Callable[[str, str], bytes]
"""Returns the content of a file (path, checksum); raises CorruptSnapshot if it is not what was written."""


def copy_state(
    manifest: Manifest, read: ReadChecked, target: Store, folder: str, source: Store | None = None
) -> Manifest:
    """Copies the state files into this folder and makes them durable. Returns the manifest with their new paths.

    `source` is the store that holds them, if the two stores may copy them by themselves. Then nobody reads them here:
    only their sizes are compared, and who restores the copy compares it with its checksum. Files that the slots have
    written into this folder stay as they are.
    """
    subtasks = []
    copied: list[str] = []
    unread: dict[str, StateFile] = {}
    for state in manifest.subtasks:
        files = []
        for file in state.files:
            path = _written_here(target, folder, source, file.path)
            if path is not None:
                unread[path] = file
            else:
                # Numbered, because files of two folders may share a name.
                path = f"{folder}/{len(copied)}.{file.path.rsplit('/', 1)[-1]}"
                if source is not None and target.copy_from(path, source, file.path):
                    unread[path] = file
                else:
                    target.write(path, read(file.path, file.checksum))
                copied.append(path)
            files.append(msgspec.structs.replace(file, path=path))
        subtasks.append(msgspec.structs.replace(state, files=files))
    target.sync(copied)
    for (path, file), size in zip(unread.items(), target.sizes(list(unread)), strict=True):
        if size is None:
            raise StoreError(f"{path} is gone, which was written a moment ago: is the store still there?")
        if size != file.size:
            raise CorruptSnapshot(f"{file.path} is not what was written: it has {size} bytes instead of {file.size}")
    return msgspec.structs.replace(manifest, subtasks=subtasks)


def _written_here(target: Store, folder: str, source: Store | None, path: str) -> str | None:
    """Returns the path in the target of a file that slots have written into this folder; None: it lies elsewhere."""
    part = target.part(source, path) if isinstance(target, Below) and source is not None else None
    return part if part is not None and part.startswith(f"{folder}/") else None


def copy_files(read: Callable[[str], bytes], target: Store, paths: Mapping[str, str]) -> dict[str, str]:
    """Copies files, each to the path that it is mapped to, and makes each durable. Returns the copies' checksums.

    Records (`.json`) go last, because a record says that the files of its version are there.
    """
    checksums = {}
    for path in sorted(paths, key=lambda path: path.endswith(".json")):
        data = read(path)
        target.write(paths[path], data)
        target.sync([paths[path]])
        checksums[paths[path]] = checksum(data)
    return checksums
