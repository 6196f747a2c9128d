"""Starts a job from a savepoint: finds it, compares the job with it, and copies its state into the job's folder.

Everything that can be wrong is found before anything is written: the savepoint is not there, is damaged or of another
version, is of another job, or the job has epochs of its own.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from engine.core.errors import CorruptSnapshot, ForeignSnapshot, IncompatibleJob, NoSavepoint, NotRunning, WeirError
from engine.core.nearest import nearest
from engine.core.paths import JobPaths
from engine.host.launch import MasterLaunch
from engine.observe.client import JobClient, known_jobs
from engine.observe.savepoints import SavepointState
from engine.process.loading import load
from engine.process.upgrade import compare
from engine.protocol.manifest import ManifestRef
from engine.snapshot.beginning import begin, begun_from, is_newest_epoch, own
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.rewind import as_forked
from engine.snapshot.savepoints import Savepoint, SavepointFolder
from engine.store.opening import address_of, open_store
from engine.store.places import open_place, remove_if_empty


def find_savepoint(store: str | Path, text: str, job: str | None = None) -> SavepointFolder:
    """Returns the folder of a savepoint that is named as an address, a path, JOB/NAME, or NAME if `job` is known."""
    parts = text.split("/")
    own = JobPaths(parts[0]).savepoint(parts[1]) if len(parts) == 2 and all(parts) else ""
    if job is not None and len(parts) == 1:
        own = JobPaths(job).savepoint(text)
    places = [f"{address_of(store)}/{own}"] if own else []
    for place in (text, *places):
        folder = SavepointFolder(open_place(place))
        if folder.exists():
            return folder
    looked = " or ".join(SavepointFolder(open_place(place)).place for place in (text, *places))
    of = parts[0] if len(parts) == 2 else job if len(parts) == 1 else None
    known = _known(str(store), of, parts[-1]) if of else ""
    raise NoSavepoint(
        f"there is no savepoint in {looked}. {known}Give JOB/NAME, or the folder that holds savepoint.json; weir "
        "savepoints JOB lists both"
    )


def _known(store: str, job: str, name: str) -> str:
    """Says which savepoints the job is known to have: one that was taken with --to is not found by JOB/NAME."""
    try:
        there = [one for one in JobClient(store, job).savepoints() if one.state is SavepointState.COMPLETED]
    except NotRunning:
        jobs = known_jobs(store)
        return f"There is no job {job!r} in the store{nearest(job, jobs) or '.'} " if jobs and job not in jobs else ""
    except WeirError:
        return ""
    elsewhere = next((one.place for one in there if one.savepoint == name), None)
    if elsewhere is not None:
        return f"{name} of {job} is in {elsewhere}, so give that folder. "
    return f"{job} has {', '.join(one.savepoint for one in there[:5])}. " if there else f"{job} has none. "


def begin_from(launch: MasterLaunch, text: str, *, claim: bool) -> str:
    """Makes a savepoint the state that the job begins with. Returns what a user should know about it.

    Raises IncompatibleJob if the job can't go on from it. `claim`: the job owns the savepoint from now on.
    """
    folder = find_savepoint(launch.store, text, launch.name)
    log = EpochLog(open_store(launch.store), JobPaths(launch.name))
    try:
        head, manifest = folder.head(), folder.manifest()
        if manifest.drained:
            raise WeirError(
                f"the savepoint {folder.place} was taken with --drain: its windows and timers have fired for good, and "
                "records that a job read from there would be late for them. Begin from one that was taken without it"
            )
        if is_newest_epoch(log, head):
            return f"{launch.name} goes on from epoch {head.epoch}, which is this savepoint"
        if begun_from(log, head):
            if claim:
                own(folder, head, log)  # the command that began may have died before it did
            return f"{launch.name} has begun from this savepoint already, and goes on{_OWNED if claim else ''}"
        _check_no_epochs(log, folder, head)
        _check_fits(launch, log, folder, head)
        begin(folder, log, f"cli-{secrets.token_hex(8)}", lambda: time.sleep(0.2), claim=claim)
    except (CorruptSnapshot, ForeignSnapshot) as error:
        mend = "Bring the file back from a backup, or begin" if isinstance(error, CorruptSnapshot) else "Or begin"
        raise WeirError(
            f"the savepoint {folder.place} can't be used: {error}. {mend} from another savepoint. Nothing was changed"
        ) from error
    return f"{launch.name} begins from savepoint {head.name} of {head.job}{_OWNED if claim else ''}"


_OWNED = "; the job owns the savepoint now, and deletes it when it is no longer needed"


def _check_no_epochs(log: EpochLog, folder: SavepointFolder, head: Savepoint) -> None:
    last = log.last()
    if last is None or last.newest is None:
        return
    name, newest = log.paths.job, last.newest.epoch
    begun = f"is at epoch {newest}" if newest else "has begun from another state"
    without = "" if _is_drained(log, last.newest) else "Start it without --from, and it goes on from there; or "
    other = "choose another --name, and a new job begins from the savepoint, with tables of its own"
    raise WeirError(
        f"job {name!r} {begun}, so it can't begin from the savepoint {folder.place}: what it has published since would "
        f"be published again. {without}{other if without else other.capitalize()}"
    )


def _is_drained(log: EpochLog, newest: ManifestRef) -> bool:
    """Says whether a start of the job would be refused since it was drained. Another start says what is damaged."""
    try:
        return log.read_manifest(newest).drained
    except (CorruptSnapshot, ForeignSnapshot):
        return False


def _check_fits(launch: MasterLaunch, log: EpochLog, folder: SavepointFolder, head: Savepoint) -> None:
    """Raises IncompatibleJob if the job can't go on from the state, and TargetTaken if a table is another job's."""
    last = log.last()
    state = as_forked(folder.manifest(), launch.name, {})
    job_id = last.job_id if last is not None else ""
    try:
        compare(load(launch), log, job_id, state, 0, launch.allow_non_restored_state)
    except IncompatibleJob as error:
        taken = "the job of this name that took epoch 0"
        another = "choose another --name if this is another job"
        rows = [
            (
                uid,
                what.replace(taken, f"{head.job}, of which the savepoint is"),
                fix.replace(another, "begin from a savepoint of this job"),
            )
            for uid, what, fix in error.rows
        ]
        raise IncompatibleJob(f"job {launch.name!r} can't begin from the savepoint {folder.place}", rows) from error


def delete_savepoint(store: str | Path, text: str) -> tuple[str, Savepoint]:
    """Deletes a savepoint; returns where it was and what it held."""
    folder = find_savepoint(store, text)
    try:
        head = folder.head()
    except CorruptSnapshot as error:
        raise WeirError(f"{error}. Delete the folder {folder.place} by hand if nobody needs it") from error
    folder.delete()
    remove_if_empty(folder.place)
    return folder.place, head
