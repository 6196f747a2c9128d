"""Compares a job with its newest epoch and its tables before Spark starts and before a store is changed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from engine.connectors.dataframe import DataFrameSource
from engine.connectors.table import TableSink
from engine.core.errors import CorruptSnapshot, StoreError, WeirError
from engine.core.paths import JobPaths
from engine.core.sinks import Committer, Found
from engine.graph.compatibility import Difference, check, gone_sinks
from engine.graph.description import table_committer
from engine.graph.job_graph import JobGraph
from engine.host.launch import MasterLaunch
from engine.protocol.manifest import Manifest
from engine.snapshot.epoch_log import EpochLog
from engine.store.bucket import is_bucket
from engine.store.opening import check_bucket, open_store


def check_upgrade(graph: JobGraph, epoch_log: EpochLog, allow_non_restored_state: bool) -> str:
    """Returns what will be dropped because the user allows it, one line each; empty if nothing.

    Raises IncompatibleJob or ForeignSnapshot if the job can't go on from its newest epoch, TargetTaken if a table is
    another job's.
    What can't be read now is left to the JobMaster, which reads it again and says what to do.
    """
    try:
        last = epoch_log.last()
        newest = last.newest if last is not None else None
        manifest = epoch_log.read_manifest(newest) if newest is not None else None
        job_id, epoch = last.job_id if last is not None else "", newest.epoch if newest is not None else 0
        dropped = compare(graph, epoch_log, job_id, manifest, epoch, allow_non_restored_state)
    except (StoreError, CorruptSnapshot, OSError):
        return ""
    return "\n".join(f"dropped, as allowed: {one.uid}: {one.what}" for one in dropped)


def for_this_start(launch: MasterLaunch) -> MasterLaunch:
    """Returns the launch with the epoch that its `allow_non_restored_state` is about: the one that it goes on from."""
    if not launch.allow_non_restored_state or launch.allowed_epoch is not None:
        return launch
    last = EpochLog(open_store(launch.store), JobPaths(launch.name)).last()
    epoch = last.newest.epoch if last is not None and last.newest is not None else 0
    return msgspec.structs.replace(launch, allowed_epoch=epoch)


def check_start(graph: JobGraph, epoch_log: EpochLog, launch: MasterLaunch) -> str:
    """Does what `check_upgrade` does, for a JobMaster of this start. It may be one of many, and come much later."""
    try:
        last = epoch_log.last()
    except (StoreError, CorruptSnapshot, OSError):
        return ""
    newest = last.newest if last is not None else None
    return check_upgrade(graph, epoch_log, newest is not None and launch.allows(newest.epoch))


def has_begun(epoch_log: EpochLog) -> bool:
    """Returns True if the job has a log, so that a claim which finds none knows that the store is away."""
    try:
        return epoch_log.last() is not None
    except CorruptSnapshot:
        return True


def check_places(graph: JobGraph) -> None:
    """Raises an error if a table outside of the store can't be made or written: a commit would find it much later."""
    for uid, sink in graph.sinks:
        if not isinstance(sink, TableSink) or sink.in_store:
            continue
        if is_bucket(sink.path):
            check_bucket(sink.path.rpartition("/")[0])
            continue
        place = Path(sink.path)
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        try:
            with tempfile.TemporaryDirectory(prefix=".probe-", dir=there):
                pass
        except OSError as error:
            raise WeirError(
                f"sink {uid!r}: the table {sink.path} can't be written: {there}: {error.strerror}; choose another path"
            ) from error


def check_inputs(graph: JobGraph, store: str) -> None:
    """Raises an error if the job reads DataFrames and its store is a bucket: Spark writes them with its own writer."""
    sources = [vertex.source for vertex in graph.vertices if vertex.source is not None]
    frames = [source.uid for source in sources if isinstance(source.source, DataFrameSource)]
    named = [*frames, *(uid for uid, _ in graph.static_tables)]
    if named and is_bucket(store):
        raise WeirError(
            f"operator {named[0]!r} reads a DataFrame, which Weir can't write to a bucket yet: choose a directory with "
            "--store, or let the job read files"
        )


def compare(
    graph: JobGraph,
    epoch_log: EpochLog,
    job_id: str,
    manifest: Manifest | None,
    epoch: int,
    allow_non_restored_state: bool,
) -> list[Difference]:
    """Compares a job with the snapshot that it is to go on from, and with what its tables hold up to an epoch."""
    targets = look_at_targets(graph, epoch_log, job_id, manifest, epoch)
    return check(graph, manifest, targets, allow_non_restored_state) if manifest is not None else []


def look_at_targets(
    graph: JobGraph, epoch_log: EpochLog, job_id: str, manifest: Manifest | None, epoch: int
) -> dict[str, Found]:
    """Returns by uid what is in the targets of the job's sinks, and of those that are gone, up to an epoch."""
    store, paths = epoch_log.store, epoch_log.paths
    committers: dict[str, Committer | None] = {uid: sink.committer(store, paths) for uid, sink in graph.sinks}
    gone = gone_sinks(graph, manifest) if manifest is not None else []
    committers |= {sink.uid: table_committer(sink, store, paths) for sink in gone}
    return {uid: of.look(job_id, epoch) if of is not None else Found() for uid, of in committers.items()}
