"""Compares a job with its newest epoch before anything starts: before Spark does, and before a store is changed."""

from __future__ import annotations

from engine.core.errors import CorruptSnapshot, StoreError
from engine.graph.compatibility import check
from engine.graph.job_graph import JobGraph
from engine.snapshot.epoch_log import EpochLog


def check_upgrade(graph: JobGraph, epoch_log: EpochLog, allow_non_restored_state: bool) -> str:
    """Returns what will be dropped because the user allows it, one line each; empty if nothing.

    Raises IncompatibleJob if the job can't go on from its newest epoch. An epoch that can't be read is left to the
    JobMaster, which reads it again and says what to do.
    """
    try:
        last = epoch_log.last()
        manifest = epoch_log.read_manifest(last.newest) if last is not None and last.newest is not None else None
    except (StoreError, CorruptSnapshot, OSError):
        return ""
    dropped = check(graph, manifest, allow_non_restored_state) if manifest is not None else []
    return "\n".join(f"dropped, as allowed: {one.uid}: {one.what}" for one in dropped)
