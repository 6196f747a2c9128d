"""Starts a job, for `weir` and Dagster alike: checks the options, chooses the snapshot, detaches a supervisor."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path

import msgspec

from engine.core.errors import CorruptSnapshot, ForeignSnapshot, IncompatibleJob, StoreError, WeirError
from engine.core.names import check_name
from engine.core.paths import JobPaths
from engine.graph.description import table_committer
from engine.graph.execution_graph import ExecutionGraph
from engine.graph.job_graph import JobGraph
from engine.host.folders import check_store
from engine.host.launch import LaunchOptions, MasterLaunch
from engine.host.run_folder import RunFolder
from engine.jobmaster.actions import was_drained
from engine.observe.client import JobClient
from engine.process.going_on import AFRESH, GONE, goes_on, is_over
from engine.process.loading import load
from engine.process.settings import read_settings
from engine.process.upgrade import check_inputs, check_places, check_upgrade, compare, for_this_start
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.rewind import as_forked, as_gone_back, fork, go_back, newest_intact
from engine.spark.conf import resolved
from engine.spark.java import find_java
from engine.spark.session import check_master, check_slots, checked_conf, default_max_slots, is_local
from engine.store.opening import address_of, open_store


class FromSnapshot(Enum):
    """The state that a job goes on from. Going behind committed output is never automatic: a user has to choose it."""

    LAST = "last"
    REWIND = "rewind"
    ALLOW_REPLAY = "allow_replay"


def plan_launch(options: LaunchOptions, store: str | Path) -> MasterLaunch:
    """Decides the options of a start: the configuration file fills in those that are None.

    Raises an error for anything that can be found wrong before a process is started.
    """
    launch = check_launch(options, store)
    _check_not_running(JobClient(launch.store, launch.name), options)
    return launch


def check_launch(options: LaunchOptions, store: str | Path) -> MasterLaunch:
    """Decides the options of a start, as `plan_launch` does, of a job that may be running: it is to be upgraded."""
    store, settings = address_of(store), read_settings()
    parallelism = options.parallelism or settings.parallelism
    check_master(options.spark_master)
    graph = load(msgspec.structs.replace(options, parallelism=parallelism))
    slots = options.max_slots or settings.max_slots or default_max_slots()
    if is_local(options.spark_master):
        check_slots(ExecutionGraph(graph).slots, slots)
    check_store(store, graph.name, allow_shared=options.allow_shared_store)
    check_places(graph)
    check_inputs(graph, store)
    find_java()  # a JobMaster would look for one for ever
    checked_conf(resolved(options.conf, os.environ))
    check_files(options.path, options.py_files)
    decided = {
        "name": graph.name,
        "parallelism": parallelism,
        "max_slots": slots,
        "py_files": [str(Path(file).absolute()) for file in options.py_files],
    }
    asked = msgspec.structs.asdict(options)
    return MasterLaunch(**asked | decided, store=store, folder=os.getcwd(), id=secrets.token_hex(8))


def check_files(job: str, py_files: Sequence[str]) -> None:
    """Raises an error if an archive of code for the workers is missing."""
    for file in py_files:
        if not Path(file).is_file():
            raise WeirError(f"--py-files {file}: there is no such file; `weir package {job}` makes one")


def _check_not_running(client: JobClient, options: LaunchOptions) -> None:
    name = client.name
    if client.alive():
        doing = "is running already"
    elif (sign := client.looked_after()) is not None:
        doing = f"is being started already ({sign})"
    else:
        return
    before = client.folder.read_launch()
    differ = before is not None and before.params != options.params
    other = f" with other parameters ({_shown(before.params)})" if before is not None and differ else ""
    raise WeirError(
        f"job {name!r} {doing}{other}: look at it with `weir status {name}`, end it first with `weir cancel {name}`, "
        "or choose another --name"
    )


def _shown(params: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in params.items()) or "none given"


def choose_snapshot(launch: MasterLaunch, choice: FromSnapshot) -> str:
    """Makes the chosen state the one that the job goes on from. Returns what a user should know about it, if anything.

    Raises IncompatibleJob if the job has changed so that it can't go on from there.
    """
    graph = load(launch)
    if choice is FromSnapshot.LAST:
        log = _epoch_log(launch)
        said = check_upgrade(graph, log, launch.allow_non_restored_state)
        _check_not_drained(launch, log)
        return "\n".join(line for line in (_goes_on(launch), said, graph.no_checkpoints) if line)
    hide = choice is FromSnapshot.REWIND
    fixed = [uid for uid, sink in graph.sinks if not sink.can_rewind]
    if hide and fixed:
        raise WeirError(f"--rewind: sink {fixed[0]!r} can't take back what it published; use --fork or --allow-replay")
    try:
        log = _epoch_log(launch)
        if (whole := _newest_is_intact(log)) is not None:
            said = f"epoch {whole} is the newest and intact: nothing is taken back, and the job goes on from it"
            return "\n".join(filter(None, [said, check_upgrade(graph, log, launch.allow_non_restored_state)]))
        _check_target(launch, log, graph, hide)
        own = {uid: sink.committer(log.store, log.paths) for uid, sink in graph.sinks}
        gone = partial(table_committer, store=log.store, paths=log.paths)
        old, new = go_back(log, own, gone, _owner(), _pause, hide=hide)
    except IncompatibleJob:
        raise
    except WeirError as error:
        raise WeirError(f"job {launch.name!r} can't go back to an older epoch: {error}") from error
    what = (
        "tables hide what later epochs published"
        if hide
        else "published output stays, and some of it is published again"
    )
    return f"going back to epoch {old}, as epoch {new}: {what}"


def _check_not_drained(launch: MasterLaunch, log: EpochLog) -> None:
    """Raises an error before Spark is started; a JobMaster that finds a drained epoch ends with the same words."""
    with contextlib.suppress(CorruptSnapshot, ForeignSnapshot, StoreError, OSError):  # left to the JobMaster
        last = log.last()
        if last is None or last.newest is None or not log.read_manifest(last.newest).drained:
            return
        if is_over(RunFolder(launch.store, launch.name)):
            raise WeirError(f"job {launch.name!r} is not started: {was_drained(last.newest.epoch)}")


def _goes_on(launch: MasterLaunch) -> str:
    """Says which epoch the job goes on from, and whose it is if other code made it."""
    words = goes_on(launch.store, launch.name)
    before = RunFolder(launch.store, launch.name).read_launch()
    if not words or words in (AFRESH, GONE) or before is None or before.path in ("", launch.path):
        return f"{launch.name} {words}" if words else ""
    return f"{launch.name} {words}, which {before.path} made; another --name begins afresh"


def _newest_is_intact(log: EpochLog) -> int | None:
    """Returns the newest epoch if all of its files are intact."""
    last = log.last()
    newest = last.newest if last is not None else None
    return newest.epoch if newest is not None and newest_intact(log).epoch == newest.epoch else None


def _check_target(launch: MasterLaunch, log: EpochLog, graph: JobGraph, hide: bool) -> None:
    """Raises IncompatibleJob if the job can't go on from the newest intact epoch, after tables have hidden the rest."""
    target, last = newest_intact(log), log.last()
    assert last is not None and last.newest is not None
    epoch = target.epoch if hide else last.newest.epoch
    compare(graph, log, last.job_id, as_gone_back(log, target), epoch, launch.allow_non_restored_state)


def fork_launch(launch: MasterLaunch, name: str) -> tuple[MasterLaunch, str]:
    """Makes a job of another name that goes on from the newest intact epoch of this one."""
    check_name("job", name)
    try:
        log = _epoch_log(launch)
        begin = as_forked(newest_intact(log), name, {})
        compare(load(launch), EpochLog(log.store, JobPaths(name)), "", begin, 0, launch.allow_non_restored_state)
        epoch = fork(log, name, _owner(), _pause)
    except IncompatibleJob:
        raise
    except WeirError as error:
        raise WeirError(f"job {launch.name!r} can't be forked: {error}") from error
    return msgspec.structs.replace(launch, name=name), f"{name} goes on from epoch {epoch} of {launch.name}"


def start_detached(launch: MasterLaunch, by: str, id: str | None = None) -> JobClient:
    """Starts a supervisor that outlives this process, and returns at once. `id`: of the start, if it is decided."""
    folder = RunFolder(launch.store, launch.name)
    launch = for_this_start(msgspec.structs.replace(launch, id=id or secrets.token_hex(8)))
    folder.prepare(private=not launch.allow_shared_store)
    path = folder.begin(launch)
    folder.want_running(launch, by)
    with folder.log_file.open("ab") as output:
        subprocess.Popen(
            [sys.executable, "-m", "engine.process.supervisor", str(path), launch.id],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return JobClient(launch.store, launch.name)


def _epoch_log(launch: MasterLaunch) -> EpochLog:
    return EpochLog(open_store(launch.store), JobPaths(launch.name))


def _pause() -> None:
    """Waits before a store that gave no definite answer is asked again."""
    time.sleep(0.2)


def _owner() -> str:
    return f"cli-{secrets.token_hex(8)}"
