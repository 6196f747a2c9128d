"""Goes back to an older epoch on a person's request, when the newest snapshot can't be read. There are three ways.

`go_back` publishes the older state again under a new epoch number. It either hides the later output (rewind) or keeps
it (replay), and first fences a JobMaster that may still run. `fork` copies the state and the job's inputs into a new
job.

Invariants: no epoch number is used twice. The newest epoch is committed before another one is published, so the log of
a table has no gap. Each of them may end between any two writes and be done again, any number of times: every copy is
in a folder of its own, and nothing counts before the record of the epoch log exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec

from engine.core.errors import CorruptSnapshot, Fenced, NothingIntact, StoreError
from engine.core.paths import JobPaths
from engine.core.sinks import Committer
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.epoch_records import Created, LogRecord, RecordKind, job_id_from, rewind_after
from engine.protocol.ids import AttemptId
from engine.protocol.job_description import SinkDescription
from engine.protocol.manifest import Manifest, ManifestRef
from engine.snapshot.commits import commit_epoch
from engine.snapshot.copying import copy_files, copy_state
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.inputs import inputs_of, place_inputs

T = TypeVar("T")
Pause = Callable[[], None]

TRIES = 50
"""How often a create with an unknown outcome is repeated before the person is asked to run the command again."""


def newest_intact(epoch_log: EpochLog) -> Manifest:
    """Returns the newest epoch whose files all have the right checksum."""
    problems = []
    for ref in epoch_log.epochs():
        try:
            manifest = epoch_log.read_manifest(ref)
            for state in manifest.subtasks:
                for file in state.files:
                    epoch_log.read_checked(file.path, file.checksum)
        except CorruptSnapshot as error:
            problems.append(f"epoch {ref.epoch}: {error}")
            continue
        return manifest
    raise NothingIntact("; ".join(problems) or "the job has no epoch yet")


def as_gone_back(epoch_log: EpochLog, target: Manifest) -> Manifest:
    """Returns the older state with the sinks of the newest manifest that can be read, and with its output.

    Tables keep what was published after the older state, so those sinks take part in what comes next, not the older
    ones: a sink that is gone since then has no record of the epochs in between.
    """
    newest = _readable(epoch_log, target.epoch)[0]
    return msgspec.structs.replace(
        target,
        description=msgspec.structs.replace(target.description, sinks=newest.description.sinks),
        commits=newest.commits,
        carried=newest.carried,
    )


def _readable(epoch_log: EpochLog, from_epoch: int) -> list[Manifest]:
    """Returns the manifests from this epoch on that can be read, newest first."""
    manifests = []
    for ref in epoch_log.epochs():
        if ref.epoch < from_epoch:
            break
        with suppress(CorruptSnapshot):
            manifests.append(epoch_log.read_manifest(ref))
    return manifests


def go_back(
    epoch_log: EpochLog,
    own: Mapping[str, Committer],
    committer_of: Callable[[SinkDescription], Committer | None],
    owner: str,
    pause: Pause,
    *,
    hide: bool,
) -> tuple[int, int]:
    """Publishes the newest intact state as a new epoch and commits it; returns (its old number, its new number).

    If `hide`, tables hide the output of the epochs after it. Otherwise that output stays, and records that are read
    again are published again. `own` are the committers of the job's sinks, `committer_of` makes those of sinks that it
    no longer has. `pause` waits a moment before the store is asked again.
    """
    newest_intact(epoch_log)  # before a JobMaster is fenced for nothing
    last = insist(lambda: epoch_log.claim(owner), pause).record
    assert last.newest is not None
    target = newest_intact(epoch_log)  # again: the JobMaster may have published until it was fenced
    place_inputs(epoch_log, target)  # the copy that they lie in is no longer the newest state afterwards
    with epoch_log.owned_by(last):
        committers = _claimed(epoch_log, own, committer_of, last, target)
    _commit_newest(epoch_log, committers, last.newest)
    for committer in committers.values() if hide else ():
        committer.prepare_rewind(target.epoch, last.generation)
    state = as_gone_back(epoch_log, target)
    manifest = msgspec.structs.replace(
        state,
        epoch=_new_epoch({**own, **committers}, last.newest.epoch + 1, hide),
        checkpoint=last.next_checkpoint,
        attempt=AttemptId(last.generation, 0),
        commits=[],
        carried=[],
        final=False,
        rewound_to=target.epoch if hide else None,
        inputs={},
    )
    ref = _write_copy(epoch_log, manifest, owner)
    record = rewind_after(last, ref, target.epoch, hide)
    if insist(lambda: definite(epoch_log.append(record)), pause) is Created.EXISTS:
        raise Fenced("another JobMaster of this job started at the same time: cancel it, then try again")
    commit_epoch(_taking_part(committers, manifest), CommitPermit.issue(ref), manifest)
    return target.epoch, manifest.epoch


def _claimed(
    epoch_log: EpochLog,
    own: Mapping[str, Committer],
    committer_of: Callable[[SinkDescription], Committer | None],
    last: LogRecord,
    target: Manifest,
) -> dict[str, Committer]:
    """Claims the targets of all sinks that the job has, or had at the older epoch or after it.

    A target that is not there is left to the JobMaster: a new one, or a table that was deleted.
    """
    assert last.newest is not None
    oldest_first = reversed(_readable(epoch_log, target.epoch))
    sinks = {sink.uid: sink for manifest in oldest_first for sink in manifest.description.sinks}
    made = {uid: committer_of(sink) for uid, sink in sinks.items() if uid not in own}
    committers = {**own, **{uid: committer for uid, committer in made.items() if committer is not None}}
    there = {uid: of for uid, of in committers.items() if of.look(last.job_id, last.newest.epoch).claimed}
    for committer in there.values():
        committer.claim(last.job_id, last.newest.epoch + 1)
    return there


def _commit_newest(epoch_log: EpochLog, committers: Mapping[str, Committer], newest: ManifestRef) -> None:
    """Commits the newest epoch, since its JobMaster may have died before that. Without a manifest it publishes nothing:
    the state that the job goes back to is older, so all of its records are read again.
    """
    permit = CommitPermit.issue(newest)
    try:
        manifest = epoch_log.read_manifest(newest)
    except CorruptSnapshot:
        for committer in committers.values() if newest.epoch else ():
            committer.pass_over(permit)
    else:
        commit_epoch(_taking_part(committers, manifest), permit, manifest)


def _taking_part(committers: Mapping[str, Committer], manifest: Manifest) -> dict[str, Committer]:
    """Returns the committers of the sinks that take part in this epoch. A rewind hides the output of all."""
    sinks = {sink.uid for sink in manifest.description.sinks}
    return {uid: of for uid, of in committers.items() if uid in sinks or manifest.rewound_to is not None}


def _new_epoch(committers: Mapping[str, Committer], epoch: int, hide: bool) -> int:
    """Returns the number of the new epoch: the next one, or the next at which every sink can hide output."""
    while hide and (later := max((c.rewind_epoch(epoch) for c in committers.values()), default=epoch)) != epoch:
        epoch = later
    return epoch


def fork(epoch_log: EpochLog, name: str, owner: str, pause: Pause) -> int:
    """Creates job `name` from this job's newest intact state, and returns the epoch of that state.

    The new job begins without epochs and tables of its own.
    """
    target = newest_intact(epoch_log)
    other = EpochLog(epoch_log.store, JobPaths(name))
    if other.last() is not None:
        raise StoreError(f"the store already has a job {name!r}: start it with --name {name}, or choose another name")
    _check_no_inputs(other)
    folder = _copy_folder(other, as_forked(target, name, {}), owner)
    ref = _write_copy(other, as_forked(target, name, _copied_inputs(epoch_log, folder)), owner)
    record = LogRecord(1, RecordKind.FENCE, 1, owner, ref, ref.checkpoint + 1, job_id_from(owner)).sealed()
    if insist(lambda: definite(other.append(record)), pause) is Created.EXISTS:
        with suppress(StoreError):
            other.store.delete(folder)
        raise StoreError(f"another process has just created a job {name!r}: choose another name")
    return target.epoch


def as_forked(target: Manifest, name: str, inputs: dict[str, str]) -> Manifest:
    """Returns the manifest from which a fork goes on: it has the state and the inputs, and no output of its own yet."""
    return msgspec.structs.replace(
        target,
        job=name,
        epoch=0,
        attempt=AttemptId(1, 0),
        commits=[],
        carried=[],
        description=msgspec.structs.replace(target.description, sinks=[]),
        final=False,
        rewound_to=None,
        inputs=inputs,
    )


def _check_no_inputs(other: EpochLog) -> None:
    for directory in other.paths.inputs():
        if others := other.store.list(directory):
            raise StoreError(f"{others[0]} is an input of another job {other.paths.job!r}: choose another name")


def _copied_inputs(epoch_log: EpochLog, folder: str) -> dict[str, str]:
    """Copies the inputs: the positions of DataFrame sources are positions in these files."""
    store = epoch_log.store
    try:
        return copy_files(store.read, store, inputs_of(store, epoch_log.paths, folder))
    except FileNotFoundError as error:  # an older version of a static table
        raise StoreError(f"an input was deleted while it was copied: {error}; try again") from error


def _write_copy(epoch_log: EpochLog, manifest: Manifest, owner: str) -> ManifestRef:
    """Writes the manifest with copies of its state files: retention deletes the old files with the old epoch.

    The folder carries the owner, so nobody who goes back at the same time writes to it.
    """
    folder = _copy_folder(epoch_log, manifest, owner)
    copied = copy_state(manifest, epoch_log.read_checked, epoch_log.store, folder)
    return epoch_log.write_manifest(copied, folder)


def _copy_folder(epoch_log: EpochLog, manifest: Manifest, owner: str) -> str:
    return epoch_log.paths.copy(manifest.attempt.generation, manifest.checkpoint, owner)


def definite(outcome: Created) -> Created | None:
    """Returns None for an outcome that `insist` has to ask for again."""
    return None if outcome is Created.UNKNOWN else outcome


def insist(attempt: Callable[[], T | None], pause: Pause) -> T:
    """Repeats a step whose outcome is unknown, with pauses."""
    for number in range(TRIES):
        if number:
            pause()
        result = attempt()
        if result is not None:
            return result
    raise StoreError("the store does not say what became of a record of the epoch log: run the same command again")
