"""Starts again what should be running and does not, with the options of its last start: after a reboot, or after its
supervisor was killed. `desired.json` says what should be running. An upgrade that was interrupted is carried on.

Invariant: what somebody stopped, what has finished and what has failed is never started by this.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

import msgspec

from engine.core.errors import WeirError
from engine.host.folders import check_store
from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterExit
from engine.host.starts import Desired
from engine.host.upgrade_record import UpgradeRecord
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.process import upgrading
from engine.process.loading import load, look_in_current_folder
from engine.process.submit import FromSnapshot, check_files, choose_snapshot, start_detached
from engine.process.upgrade import check_places
from engine.spark.code import as_kept, kept_code
from engine.spark.conf import resolved
from engine.spark.java import find_java
from engine.spark.session import checked_conf, is_local
from engine.store.opening import address_of


class Wanted(Enum):
    """Whether a job is to be started again."""

    NEVER_STARTED = (
        "was never started by `weir run`, `weir submit` or Dagster in this store: nothing says how to start it"
    )
    STOPPED = "was stopped on purpose"
    FINISHED = "has finished"
    FAILED = "has failed"
    RUNNING = "is running already"
    ELSEWHERE = "was started last on another machine, and may be running there: `weir submit` takes it over"
    UPGRADED = "was being upgraded"
    RESUMED = "should be running, and is not"


def wanted(desired: Desired | None, ended: MasterExit | None, looked_after: bool) -> Wanted:
    """Decides by the last request of a user and by how the job ended.

    A job that was cancelled without such a request lost its supervisor: a reboot ends it so, too.
    """
    if looked_after:
        return Wanted.RUNNING
    if desired is None:
        return Wanted.NEVER_STARTED
    if not desired.running:
        return Wanted.STOPPED
    if ended is not None and ended.outcome is Outcome.FINISHED:
        return Wanted.FINISHED
    if ended is not None and ended.outcome is Outcome.FAILED:
        return Wanted.FAILED
    return Wanted.RESUMED


class Found(msgspec.Struct, frozen=True):
    """A job, and whether it is to be started again. `why` says more about a job that is not."""

    job: str
    verdict: Wanted
    why: str = ""
    launch: MasterLaunch | None = None

    def in_words(self) -> str:
        return f"{self.verdict.value}{f' ({self.why})' if self.why else ''}"


def look(client: JobClient) -> Found:
    """Takes seconds if nobody answers: a supervisor may still give a sign."""
    folder = client.folder
    looked_after = client.alive() or folder.live_supervisor() is not None
    desired, ended = folder.read_desired(), folder.read_exit()
    if not looked_after and (host := folder.started_elsewhere()) is not None:
        return Found(client.name, Wanted.ELSEWHERE, host)
    if not looked_after and upgrading.unfinished(client) is not None:
        return Found(client.name, Wanted.UPGRADED)
    verdict = wanted(desired, ended, looked_after)
    by = f"by {desired.by}" if desired is not None else ""
    reasons = {Wanted.STOPPED: by, Wanted.FAILED: ended.reason if ended else "", Wanted.NEVER_STARTED: ""}
    return Found(client.name, verdict, reasons.get(verdict, ""), desired.launch if desired is not None else None)


def carry_on_upgrade(client: JobClient, say: upgrading.Say) -> UpgradeRecord | None:
    """Carries on an upgrade that was interrupted, and returns its record when it is over; None: there is none any more.

    A plain start of the last version would leave the upgrade without a way back, and nobody knows yet whether that
    version can read its state.
    """
    begun = upgrading.unfinished(client)
    if begun is None:
        return None
    _check_place(client, begun.new)
    _enter(begun.new)
    return upgrading.carry_on_begun(client, begun, None, say)


def resume(client: JobClient, launch: MasterLaunch, by: str) -> str:
    """Starts the job again as it was started last. Returns what a user should know about it: the epoch, for one.

    It runs the code of that start, also if its files have changed since: only an upgrade or a submit takes them. What
    the user allowed that start to drop is not allowed again. Raises an error for anything that can be found wrong
    before a process is started.
    """
    launch = msgspec.structs.replace(launch, allow_non_restored_state=False, allowed_epoch=None)
    _check_place(client, launch)
    check_store(launch.store, launch.name, allow_shared=launch.allow_shared_store)
    _enter(launch)
    look_in_current_folder()
    launch = as_kept(launch, kept_code(launch) if is_local(launch.spark_master) else "")
    check_places(load(launch))
    find_java()
    checked_conf(resolved(launch.conf, os.environ))
    check_files(launch.path, launch.py_files)
    said = choose_snapshot(launch, FromSnapshot.LAST)
    start_detached(launch, by)
    return f"{said}\n{_OLD_CODE.format(job=launch.name)}" if launch.code else said


_OLD_CODE = (
    "it runs the code that it was started with, and not its files, which may have changed since: `weir upgrade {job}` "
    "takes them"
)


def _check_place(client: JobClient, launch: MasterLaunch) -> None:
    """A store that was moved or copied names its old place; a job in each of the two would write the same tables."""
    here = address_of(client.store)
    if here != launch.store and not (Path(launch.store).exists() and Path(here).samefile(launch.store)):
        raise WeirError(
            f"job {client.name!r} was started with the store {launch.store}, and this one is {here}: if it was moved, "
            f"start the job once with `weir submit {launch.path} --name {client.name} --store {here}`"
        )


def _enter(launch: MasterLaunch) -> None:
    """Changes to the folder in which the job was started: its import path is looked up there."""
    if not launch.folder:
        return
    try:
        os.chdir(launch.folder)
    except OSError as error:
        raise WeirError(
            f"job {launch.name!r} was started in {launch.folder}, which can't be entered: {error.strerror}; start it "
            f"with `weir submit {launch.path} --name {launch.name}` in the project's folder"
        ) from error
