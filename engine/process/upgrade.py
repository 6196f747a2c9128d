"""Compares a job with its newest epoch and its tables before Spark starts and before a store is changed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from engine.connectors.table import TableSink
from engine.core.errors import CorruptSnapshot, StoreError, WeirError
from engine.core.sinks import Committer, Found
from engine.graph.compatibility import Difference, check, gone_sinks
from engine.graph.description import table_committer
from engine.graph.job_graph import JobGraph
from engine.protocol.manifest import Manifest
from engine.snapshot.epoch_log import EpochLog


def check_upgrade(graph: JobGraph, epoch_log: EpochLog, allow_non_restored_state: bool) -> str:
    """Returns what will be dropped because the user allows it, one line each; empty if nothing.

    Raises IncompatibleJob if the job can't go on from its newest epoch, and TargetTaken if a table is another job's.
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


def check_places(graph: JobGraph) -> None:
    """Raises an error if a table outside of the store can't be made or written: a commit would find it much later."""
    for uid, sink in graph.sinks:
        if not isinstance(sink, TableSink) or not sink.path.startswith("/"):
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


def compare(
    graph: JobGraph,
    epoch_log: EpochLog,
    job_id: str,
    manifest: Manifest | None,
    epoch: int,
    allow_non_restored_state: bool,
) -> list[Difference]:
    """Compares a job with the snapshot that it is to go on from, and with what its tables hold up to an epoch."""
    store, paths = epoch_log.store, epoch_log.paths
    committers: dict[str, Committer | None] = {uid: sink.committer(store, paths) for uid, sink in graph.sinks}
    gone = gone_sinks(graph, manifest) if manifest is not None else []
    committers |= {sink.uid: table_committer(sink, store, paths) for sink in gone}
    targets = {uid: of.look(job_id, epoch) if of is not None else Found() for uid, of in committers.items()}
    return check(graph, manifest, targets, allow_non_restored_state) if manifest is not None else []
