"""`streamed` makes the `StreamSpec` of a job of generated records: how Dagster starts, watches and drills it."""

from __future__ import annotations

from checks.spec import DrillSpec
from orchestration.spec import StreamSpec


def streamed(drill: DrillSpec, description: str, owner: str) -> StreamSpec:
    return StreamSpec(
        job=drill.job,
        path=drill.path,
        description=description,
        owners=(owner,),
        # Large batches and few checkpoints leave room for other jobs, and for a drill, on a small machine.
        params={"buffer_ms": "200", "interval": "10 s"},
        parallelism=2,
        watch_every_s=30,
        drill=drill,
    )
