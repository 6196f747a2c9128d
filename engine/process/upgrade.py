"""Compares a job with its newest epoch before anything starts: before Spark does, and before a store is changed."""

from __future__ import annotations

from engine.connectors.table import TableSink
from engine.core.errors import CorruptSnapshot, StoreError, WeirError
from engine.core.sinks import Committer
from engine.graph.compatibility import check
from engine.graph.job_graph import JobGraph
from engine.protocol.manifest import Manifest
from engine.snapshot.epoch_log import EpochLog


def check_upgrade(graph: JobGraph, epoch_log: EpochLog, allow_non_restored_state: bool) -> str:
    """Returns what will be dropped because the user allows it, one line each; empty if nothing.

    Raises IncompatibleJob if the job can't go on from its newest epoch. An epoch that can't be read is left to the
    JobMaster, which reads it again and says what to do.
    """
    manifest = _newest(epoch_log)
    dropped = check(graph, manifest, allow_non_restored_state) if manifest is not None else []
    return "\n".join(f"dropped, as allowed: {one.uid}: {one.what}" for one in dropped)


def newest_committers(graph: JobGraph, epoch_log: EpochLog) -> dict[str, Committer]:
    """Returns committers for the sinks that took part in the newest epoch, which the job may no longer have.

    Whoever goes back commits that epoch first. If it can't be read, these are the sinks of the job as it is now.
    """
    store, paths = epoch_log.store, epoch_log.paths
    own = {uid: sink.committer(store, paths) for uid, sink in graph.sinks}
    manifest = _newest(epoch_log)
    if manifest is None:
        return own
    sinks = {sink.uid: sink.table for sink in manifest.description.sinks}
    for uid in {committable.uid for committable in manifest.commits}:
        if not sinks.get(uid) and uid not in own:
            raise WeirError(f"only the sink {uid!r}, which is gone, can commit the output of epoch {manifest.epoch}")
    tables = {uid: TableSink(table).committer(store, paths) for uid, table in sinks.items() if table}
    return {uid: tables.get(uid) or own[uid] for uid in sinks if uid in tables or uid in own}


def _newest(epoch_log: EpochLog) -> Manifest | None:
    """Returns the manifest of the newest epoch, or None if there is none that can be read."""
    try:
        last = epoch_log.last()
        return epoch_log.read_manifest(last.newest) if last is not None and last.newest is not None else None
    except (StoreError, CorruptSnapshot, OSError):
        return None
