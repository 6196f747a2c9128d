"""Starting a job in the background, for `weir submit` and Dagster alike: check, choose the snapshot, detach."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

import msgspec

from engine.core.errors import Fenced, StoreError, WeirError
from engine.core.paths import JobPaths
from engine.graph.execution_graph import ExecutionGraph
from engine.host.run_folder import MasterLaunch, RunFolder
from engine.observe.client import JobClient
from engine.process.loading import JobSpec, default_name, load
from engine.process.settings import read_settings
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.rewind import NothingIntact, fork, go_back
from engine.spark.session import default_max_slots, is_local
from engine.store.directory import DirectoryStore

SLOTS_TIMEOUT_S = 60.0


class FromSnapshot(Enum):
    """Where a job goes on. Restoring behind committed output is never automatic: only if somebody chose it."""

    LAST = "last"
    REWIND = "rewind"
    ALLOW_REPLAY = "allow_replay"


def plan_launch(
    path: str,
    store: str | Path,
    *,
    params: Mapping[str, str],
    parallelism: int | None = None,
    name: str | None = None,
    max_slots: int | None = None,
    slots_timeout_s: float = SLOTS_TIMEOUT_S,
    master: str = "",
    conf: Mapping[str, str] | None = None,
    py_files: Sequence[str] = (),
    slot_memory_mb: int | None = None,
) -> MasterLaunch:
    """Everything that can be wrong is found here, before a process is started.

    What is not given comes from the configuration file.
    """
    settings = read_settings()
    parallelism = parallelism or settings.parallelism
    spec = JobSpec(path, name or default_name(path), dict(params), parallelism)
    graph = load(spec)
    slots = max_slots or settings.max_slots or default_max_slots()
    needed = ExecutionGraph(graph).slots
    if is_local(master) and needed > slots:
        raise WeirError(
            f"too few slots: the job needs {needed}, Spark is given {slots}; start it with --max-slots {needed} or a "
            "lower --parallelism"
        )
    _check_store(store)
    if JobClient(str(store), spec.name).alive():
        raise WeirError(f"job {spec.name!r} is running already: weir status {spec.name}, or choose another --name")
    for file in py_files:
        if not Path(file).is_file():
            raise WeirError(f"--py-files {file}: there is no such file; `weir package {path}` makes one")
    return MasterLaunch(
        path,
        spec.name,
        spec.params,
        parallelism,
        str(Path(store).absolute()),
        slots,
        slots_timeout_s,
        master=master,
        conf=dict(conf or {}),
        py_files=[str(Path(file).absolute()) for file in py_files],
        slot_memory_mb=slot_memory_mb,
        id=secrets.token_hex(8),
    )


def choose_snapshot(launch: MasterLaunch, choice: FromSnapshot) -> str:
    """Make the chosen state the one that the job goes on from; says what was done, or nothing to say."""
    if choice is FromSnapshot.LAST:
        return ""
    hide = choice is FromSnapshot.REWIND
    graph = load(JobSpec.of(launch))
    fixed = [uid for uid, sink in graph.sinks if not sink.can_rewind]
    if hide and fixed:
        raise WeirError(f"--rewind: sink {fixed[0]!r} can't take back what it published; use --fork or --allow-replay")
    try:
        old, new = go_back(_log(launch), _owner(), hide=hide)
    except (NothingIntact, Fenced, StoreError) as error:
        raise WeirError(f"can't go back: {error}") from error
    what = "tables hide what came after it" if hide else "what came after it stays, and comes again"
    return f"going back to epoch {old}, as epoch {new}: {what}"


def fork_launch(launch: MasterLaunch, name: str) -> tuple[MasterLaunch, str]:
    """A job of another name that goes on from the newest intact epoch of this one."""
    try:
        epoch = fork(_log(launch), name, _owner())
    except (NothingIntact, Fenced, StoreError) as error:
        raise WeirError(f"can't go back: {error}") from error
    return msgspec.structs.replace(launch, name=name), f"{name} goes on from epoch {epoch} of {launch.name}"


def start_detached(launch: MasterLaunch, by: str) -> JobClient:
    """Leave a supervisor running that outlives whoever started it."""
    folder = RunFolder(launch.store, launch.name)
    launch = msgspec.structs.replace(launch, id=secrets.token_hex(8))
    folder.prepare()
    folder.clear()
    path = folder.write_launch(launch)
    folder.want_running(launch, by)
    with folder.log.open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "engine.process.supervisor", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return JobClient(launch.store, launch.name)


def _log(launch: MasterLaunch) -> EpochLog:
    return EpochLog(DirectoryStore(launch.store), JobPaths(launch.name))


def _owner() -> str:
    return f"cli-{secrets.token_hex(8)}"


def _check_store(store: str | Path) -> None:
    folder = Path(store).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"weir")
        probe.unlink()
    except OSError as error:
        raise WeirError(
            f"the store {folder} can't be written: {error.strerror}; choose another with --store"
        ) from error
