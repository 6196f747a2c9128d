"""Copies a snapshot, and a job's inputs, from one place to another: for savepoints, forks and going back.

Invariant: the checksum of a state file is checked before it is copied.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.core.ports import Store
from engine.protocol.manifest import Manifest
from engine.snapshot.epoch_log import read_checked


def copy_state(manifest: Manifest, source: Store, target: Store, place: Callable[[str], str]) -> Manifest:
    """Copies the state files and makes them durable. Returns the manifest with their new paths.

    `place` says where a file of this name goes. The names are numbered, because files of two folders may share one.
    """
    subtasks = []
    copied: list[str] = []
    for state in manifest.subtasks:
        files = []
        for file in state.files:
            path = place(f"{len(copied)}.{file.path.rsplit('/', 1)[-1]}")
            target.write(path, read_checked(source, file.path, file.checksum))
            copied.append(path)
            files.append(msgspec.structs.replace(file, path=path))
        subtasks.append(msgspec.structs.replace(state, files=files))
    target.sync(copied)
    return msgspec.structs.replace(manifest, subtasks=subtasks)


def copy_files(source: Store, target: Store, paths: dict[str, str]) -> None:
    """Copies files (from → to) and makes each durable.

    Records (`.json`) go last, because a record says that the files of its version are there.
    """
    for path in sorted(paths, key=lambda path: path.endswith(".json")):
        target.write(paths[path], source.read(path))
        target.sync([paths[path]])
