"""The inputs of a job (what it reads from its own folder) as part of a snapshot that another job begins from.

`begin` and `fork` copy them into the folder of their own copy of the snapshot, and the manifest there names them. The
JobMaster puts them where the job reads them, before it restores that snapshot.

Invariant: what a job reads is written only by who has claimed it, or is about to, from the copy that its log names.
So two commands that race, or one that was killed before another began from something else, never mix their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.protocol.manifest import Manifest
from engine.snapshot.copying import copy_files
from engine.snapshot.epoch_log import EpochLog

_KINDS = ("sources", "static")
_FOLDER = "/inputs/"
_PLACED = "placed"


def inputs_of(store: Store, paths: JobPaths, folder: str) -> dict[str, str]:
    """Returns the files that a job reads from its own folder, each with the path of its copy below `folder`."""
    return {
        path: f"{folder}{_FOLDER}{kind}{path.removeprefix(directory)}"
        for kind, directory in zip(_KINDS, paths.inputs(), strict=True)
        for path in store.list(directory)
    }


def copy_inputs(read: Callable[[str], bytes], copies: Mapping[str, str], store: Store, folder: str) -> dict[str, str]:
    """Copies inputs that were copied before, such as a savepoint's, into `folder`. Returns the copies' checksums."""
    return copy_files(read, store, {path: f"{folder}{_FOLDER}{path.split(_FOLDER, 1)[1]}" for path in copies})


def place_inputs(log: EpochLog, manifest: Manifest) -> None:
    """Puts the inputs that were copied with this snapshot where the job reads them. It may be repeated.

    A start that came to no epoch may have left others there: they are deleted. Only the first JobMaster does so: what
    is there after the first restore may be newer than the snapshot.
    """
    if not manifest.inputs:
        return
    directories = dict(zip(_KINDS, log.paths.inputs(), strict=True))
    places: dict[str, str] = {}
    for path in manifest.inputs:
        kind, rest = path.split(_FOLDER, 1)[1].split("/", 1)
        places[path] = f"{directories[kind]}/{rest}"
    placed = f"{next(iter(places)).split(_FOLDER, 1)[0]}/{_PLACED}"
    there = [path for directory in directories.values() for path in log.store.list(directory)]
    try:
        log.store.read(placed)
        return
    except FileNotFoundError:
        pass  # so all that was listed before was there before the first restore, however long this process slept
    for path in there:
        if path not in places.values():
            log.store.delete(path)
    copy_files(lambda path: log.read_checked(path, manifest.inputs[path]), log.store, places)
    log.store.write(placed, b"")
    log.store.sync([placed])


def place_newest_inputs(log: EpochLog) -> None:
    """Does so if the job has no epoch of its own yet: before Spark writes those inputs that are missing."""
    last = log.last()
    if last is not None and last.newest is not None and last.newest.epoch == 0:
        place_inputs(log, log.read_manifest(last.newest))
