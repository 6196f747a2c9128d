"""Decides whether a job may be restored from a snapshot that an earlier version of it has taken. Pure."""

from __future__ import annotations

from engine.graph.job_graph import JobGraph
from engine.protocol.manifest import Manifest


def incompatibility(graph: JobGraph, manifest: Manifest) -> str | None:
    """Returns why the job can't be restored from this snapshot and what to do, or None if it can."""
    if manifest.max_parallelism != graph.max_parallelism:
        return (
            f"epoch {manifest.epoch} was taken with max_parallelism {manifest.max_parallelism}, the job now "
            f"has {graph.max_parallelism}: set it back to {manifest.max_parallelism}, because the state can't be "
            "moved to other key groups"
        )
    return None
