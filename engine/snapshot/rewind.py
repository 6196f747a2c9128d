"""Goes back to an older epoch on a person's request, when the newest snapshot can't be read. There are three ways.

`go_back` publishes the older state again under a new epoch number. It either hides the later output (rewind) or keeps
it (replay), and first fences a JobMaster that may still run. `fork` copies the state and the job's inputs into a new
job. Invariant: no epoch number is used twice.
"""

from __future__ import annotations

import msgspec

from engine.core.errors import CorruptSnapshot, Fenced, StoreError
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.protocol.epoch_records import Created, LogRecord, RecordKind, job_id_from, rewind_after
from engine.protocol.manifest import Manifest
from engine.snapshot.epoch_log import EpochLog, read_checked

TABLE_RECORDS = 10
"""Every tenth record of a Weir table repeats all files; only such a record can hide the files of later epochs."""


class NothingIntact(Exception):
    """No epoch in the store can be read completely."""


def newest_intact(epoch_log: EpochLog) -> Manifest:
    """Returns the newest epoch whose files all have the right checksum."""
    problems = []
    for ref in epoch_log.epochs():
        try:
            manifest = epoch_log.read_manifest(ref)
            for state in manifest.subtasks:
                for file in state.files:
                    read_checked(epoch_log.store, file.path, file.checksum)
        except CorruptSnapshot as error:
            problems.append(f"epoch {ref.epoch}: {error}")
            continue
        return manifest
    raise NothingIntact("; ".join(problems) or "the job has no epoch yet")


def go_back(epoch_log: EpochLog, owner: str, *, hide: bool) -> tuple[int, int]:
    """Publishes the newest intact state as a new epoch; returns (its old number, its new number).

    If `hide`, tables hide the output of the epochs after it. Otherwise that output stays, and records that are read
    again are published again.
    """
    target = newest_intact(epoch_log)
    claimed = None
    while claimed is None:
        claimed = epoch_log.claim(owner)
    last = claimed.record
    assert last.newest is not None
    epoch = last.newest.epoch + 1
    if hide:
        epoch = -(-epoch // TABLE_RECORDS) * TABLE_RECORDS
    manifest = msgspec.structs.replace(
        target,
        epoch=epoch,
        checkpoint=last.next_checkpoint,
        commits=[],
        carried=[],
        final=False,
        rewound_to=target.epoch if hide else None,
    )
    manifest = _copied(epoch_log.store, epoch_log.paths, manifest)
    ref = epoch_log.write_manifest(manifest)
    record = rewind_after(last, ref)
    outcome = Created.UNKNOWN
    while outcome is Created.UNKNOWN:
        outcome = epoch_log.append(record)
    if outcome is Created.EXISTS:
        raise Fenced("another JobMaster of this job started at the same time: cancel it, then try again")
    return target.epoch, epoch


def fork(epoch_log: EpochLog, name: str, owner: str) -> int:
    """Creates job `name` from this job's newest intact state, and returns the epoch of that state.

    The new job begins without epochs and tables of its own.
    """
    target = newest_intact(epoch_log)
    other = EpochLog(epoch_log.store, JobPaths(name))
    if other.last() is not None:
        raise StoreError(f"the store already has a job {name!r}: choose another name")
    _copy_inputs(epoch_log.store, epoch_log.paths, other.paths)
    manifest = msgspec.structs.replace(target, job=name, epoch=0, commits=[], carried=[], final=False, rewound_to=None)
    ref = other.write_manifest(_copied(epoch_log.store, other.paths, manifest))
    record = LogRecord(1, RecordKind.FENCE, 1, owner, ref, ref.checkpoint + 1, job_id_from(owner))
    outcome = Created.UNKNOWN
    while outcome is Created.UNKNOWN:
        outcome = other.append(record)
    if outcome is Created.EXISTS:
        raise StoreError(f"another process has just created a job {name!r}: choose another name")
    return target.epoch


def _copy_inputs(store: Store, source: JobPaths, target: JobPaths) -> None:
    """Copies the inputs: the positions of DataFrame sources are positions in these files."""
    for old, new in zip(source.inputs(), target.inputs(), strict=True):
        # `_SUCCESS` is copied last, because it says that all other files are there.
        for path in sorted(store.list(old), key=lambda path: path.endswith("/_SUCCESS")):
            copy = new + path.removeprefix(old)
            store.write(copy, store.read(path))
            store.sync([copy])


def _copied(store: Store, paths: JobPaths, manifest: Manifest) -> Manifest:
    """Copies the state files for a new manifest: retention deletes the old files with the old epoch."""
    subtasks = []
    for state in manifest.subtasks:
        files = []
        for file in state.files:
            path = paths.state_file(
                manifest.attempt, manifest.checkpoint, file.uid, state.subtask, file.name, file.distribution
            )
            store.write(path, read_checked(store, file.path, file.checksum))
            files.append(msgspec.structs.replace(file, path=path))
        subtasks.append(msgspec.structs.replace(state, files=files))
    store.sync([file.path for state in subtasks for file in state.files])
    return msgspec.structs.replace(manifest, subtasks=subtasks)
