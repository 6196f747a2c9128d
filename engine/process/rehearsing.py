"""Rehearses an upgrade: runs the new version beside the old one, from a copy of its newest epoch (H7).

The rehearsal is a job of its own in a folder of its own: `<store>/rehearsals/<job>/<time>/` is its store.
Of the running job it reads the epoch log, one snapshot and the tables, and writes nothing.

    from               the copied snapshot, as a savepoint
    <job>-rehearsal/   the new version: log, snapshots, tables
    leash              a file that the command locks while its job runs: the job ends itself if the command is killed
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from engine.connectors.table import TableSink
from engine.core.errors import CorruptSnapshot, NotRunning, StoreError, WeirError
from engine.core.paths import JobPaths
from engine.graph.job_graph import JobGraph
from engine.graph.row_identity import RowIdentity, row_identity
from engine.host.launch import MasterLaunch
from engine.host.locks import held, is_held
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.process.from_savepoint import begin_from
from engine.process.loading import load
from engine.process.submit import start_detached
from engine.protocol.failures import Raised
from engine.protocol.manifest import Manifest
from engine.protocol.signals import MIN_WATERMARK
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.savepoints import Origin, SavepointFolder
from engine.store.bucket import is_bucket
from engine.store.directory import DirectoryStore

KEPT = 5
"""The folders of this many rehearsals of a job are kept."""
LEASH = "leash"
PATIENCE_S = 300.0
"""How long the rehearsed version may take for its next epoch."""
TRIES = 5
LOOK_EVERY_S = 0.3

Say = Callable[[str], None]


class RehearsalFailed(WeirError):
    """The new version could not be rehearsed. `raised`: the error of its own code, if it was one."""

    def __init__(self, message: str, raised: Raised | None = None) -> None:
        super().__init__(message)
        self.raised = raised


@dataclass(frozen=True)
class ComparableTable:
    """A table that both versions write. Rows are compared whose event time is in (`after_ms`, `until_ms`].

    `why_not`: why they can't be compared; empty if they can.
    """

    uid: str
    old: str
    new: str
    columns: tuple[str, ...]
    identity: RowIdentity | None
    after_ms: int = 0
    until_ms: int = 0
    why_not: str = ""


@dataclass(frozen=True)
class Rehearsed:
    """A rehearsal that is over. `cut` is the epoch that both versions went on from.

    `old_epoch` and `new_epoch` are the newest epochs of the two, whose progress bounds the comparison. `others` are the
    tables that only one of them writes.
    """

    folder: Path
    job: str
    path: str
    cut: int
    old_epoch: int
    new_epoch: int
    tables: list[ComparableTable]
    others: list[str]


def rehearse(client: JobClient, launch: MasterLaunch, checkpoints: int, say: Say) -> Rehearsed:
    """Runs the new version for this many checkpoints. Raises RehearsalFailed if it does not get there."""
    check_store(client.store)
    name = f"{client.name}-rehearsal"
    folder = _new_folder(client, name)
    graph = load(launch)
    _check_sinks(graph)
    old = EpochLog(DirectoryStore(client.store), JobPaths(client.name))
    cut = _copied(old, folder, say)
    copy = msgspec.structs.replace(launch, name=name, store=str(folder), own_tables=True)
    (folder / name).mkdir(mode=0o700)
    new = EpochLog(DirectoryStore(folder), JobPaths(name))
    begin_from(copy, str(folder / "from"), claim=False)
    say(f"{launch.path} runs beside {client.name} from epoch {cut.epoch}, in {folder}")
    with _running(copy) as rehearsed:
        _wait_for_epoch(rehearsed, new, checkpoints, say)
    after_old, after_new = _newest(old), _newest(new)
    tables, others = _tables(client, copy, graph, cut, after_old, after_new)
    return Rehearsed(folder, client.name, launch.path, cut.epoch, after_old.epoch, after_new.epoch, tables, others)


def check_store(store: str) -> None:
    if is_bucket(store):
        raise WeirError(
            f"the store {store} is a bucket: an upgrade can be rehearsed in a directory only. A dry run works in both"
        )


def _new_folder(client: JobClient, name: str) -> Path:
    parent = Path(client.store).absolute() / "rehearsals" / client.name
    parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(parent, name)
    folder = parent / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder.mkdir(mode=0o700)
    return folder


def remove_leftovers(parent: Path, name: str) -> None:
    """Removes what killed commands left, and the oldest rehearsals. Those under way stay."""
    free = [path for path in sorted(parent.iterdir()) if path.is_dir() and not is_held(path / LEASH)]
    left = [path for path in free if (path / LEASH).exists()]
    for path in left:
        run = JobClient(str(path), name).folder
        if run.read_exit() is not None or run.live_supervisor() is None:  # the next rehearsal looks at the others
            shutil.rmtree(path, ignore_errors=True)
    for path in [path for path in free if path not in left][: 1 - KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def _check_sinks(graph: JobGraph) -> None:
    """Refuses sinks that would write to a place outside of the rehearsal's folder."""
    for uid, sink in graph.sinks:
        if sink.target is not None and not isinstance(sink, TableSink):
            raise WeirError(
                f"sink {uid!r} writes to {sink.target}, which a rehearsal can't keep apart from the running job's "
                "output: rehearse a version without it"
            )


def _copied(old: EpochLog, folder: Path, say: Say) -> Manifest:
    """Copies the newest epoch of the running job. It may be deleted meanwhile: then a newer one is copied."""
    (folder / "from").mkdir(mode=0o700)
    to = SavepointFolder(DirectoryStore(folder / "from"))
    for tries in range(TRIES):
        manifest = _newest(old)
        last = old.last()
        assert last is not None
        try:
            to.write("rehearsal", manifest, Origin(old, last.job_id, manifest.epoch), stopped=True)
            return manifest
        except (CorruptSnapshot, StoreError) as error:
            if tries + 1 == TRIES:
                raise
            say(f"epoch {manifest.epoch} could not be copied ({error}); trying a newer one")
    raise AssertionError


def _newest(log: EpochLog) -> Manifest:
    for tries in range(TRIES):
        last = log.last()
        if last is None or last.newest is None:
            raise WeirError(f"job {log.paths.job!r} has no epoch yet, so there is nothing to rehearse from")
        try:
            return log.read_manifest(last.newest)
        except CorruptSnapshot:  # retention may delete a manifest between the two reads
            if tries + 1 == TRIES:
                raise
    raise AssertionError


@contextlib.contextmanager
def _running(launch: MasterLaunch) -> Iterator[JobClient]:
    """Runs the job meanwhile. It ends also if this process is killed: then nobody holds its leash any more."""
    leash = Path(launch.store) / LEASH
    with held(leash):
        client = start_detached(msgspec.structs.replace(launch, leash=str(leash)), "rehearsal")
        try:
            yield client
        finally:
            with contextlib.suppress(NotRunning):
                client.cancel("rehearsal")
                client.wait_until_ended()
    leash.unlink(missing_ok=True)


def _wait_for_epoch(client: JobClient, log: EpochLog, wanted: int, say: Say) -> None:
    """Waits until the new version has published so many epochs, or has finished. Asks for checkpoints."""
    reached, since_s, asked_s = 0, time.monotonic(), time.monotonic()
    while reached < wanted:
        ended = client.ended()
        if ended is not None and ended.outcome is Outcome.FINISHED:
            return
        if ended is not None:
            raise RehearsalFailed(f"the new version {ended.outcome} in the rehearsal: {ended.reason}", ended.raised)
        last = log.last()
        epoch = last.newest.epoch if last is not None and last.newest is not None else 0
        now_s = time.monotonic()
        if epoch > reached:
            reached, since_s = epoch, now_s
            say(f"checkpoint {reached} of {wanted}")
        if now_s - since_s > PATIENCE_S:
            raise RehearsalFailed(
                f"the new version published no epoch in {PATIENCE_S:.0f} s: see {client.folder.log_file}"
            )
        if now_s - asked_s > LOOK_EVERY_S * 10:
            asked_s = now_s
            with contextlib.suppress(WeirError):
                client.trigger_checkpoint()
        time.sleep(LOOK_EVERY_S)


def _tables(
    client: JobClient, launch: MasterLaunch, graph: JobGraph, cut: Manifest, old: Manifest, new: Manifest
) -> tuple[list[ComparableTable], list[str]]:
    before = {sink.uid: sink for sink in cut.description.sinks if sink.table}
    now = {sink.uid: sink for sink in new.description.sinks if sink.table}
    tables = [
        _comparable(client, launch, graph, before[uid].table, now[uid].table, uid, (cut, old, new))
        for uid in before
        if uid in now
    ]
    return tables, sorted(before.keys() ^ now.keys())


def _comparable(
    client: JobClient,
    launch: MasterLaunch,
    graph: JobGraph,
    old_table: str,
    new_table: str,
    uid: str,
    manifests: tuple[Manifest, Manifest, Manifest],
) -> ComparableTable:
    cut, old, new = manifests
    columns = [
        {column.name: column.type for sink in of.description.sinks if sink.uid == uid for column in sink.columns}
        for of in (cut, new)
    ]
    common = tuple(name for name, kind in columns[0].items() if columns[1].get(name) == kind)
    identity = row_identity(graph, uid)
    table = ComparableTable(
        uid,
        _place(client.store, client.name, old_table),
        _place(launch.store, launch.name, new_table),
        common,
        identity,
    )
    if identity is None:
        return replace(
            table, why_not="its rows have no event time in a column, so nobody can say which both versions have passed"
        )
    if missing := [name for name in (*identity.keys, identity.time) if name not in common]:
        return replace(table, why_not=f"only one version has the column {missing[0]}")
    after, ends = identity.begun(cut), [identity.passed(of) for of in (old, new)]
    until = min((end for end in ends if end is not None), default=None)
    if None in ends or until is None or (after is not None and until <= after):
        return replace(table, why_not="no event time has passed in both versions since: rehearse more checkpoints")
    return replace(table, after_ms=after if after is not None else MIN_WATERMARK, until_ms=until)


def _place(store: str, job: str, table: str) -> str:
    """Returns the folder of a table. One at an absolute path is outside of the job's own folder."""
    return table if table.startswith("/") else str(Path(store).absolute() / JobPaths(job).table(table))
