"""A code location for tests: a stream that only Dagster checkpoints; jobs that hold its pool or import the audit."""

import os
import time
from pathlib import Path

import dagster as dg

from orchestration.factory import build_stream_definitions
from orchestration.resources import default_store, resources
from orchestration.spec import StreamSpec

BY_HAND = StreamSpec(
    job="by_hand",
    path="tests.system.jobs:by_hand",
    description="Sums; no checkpoint interval.",
    owners=("team:tests",),
    checkpoint_cron="* * * * *",
    savepoint_cron="0 2 * * *",
    savepoints_kept=2,
    watch_every_s=5,
    silent_after_s=15,
)


@dg.op(pool=BY_HAND.pool)
def hold_the_pool() -> None:
    (Path(default_store()) / "holder.pid").write_text(str(os.getpid()))
    time.sleep(900)


@dg.op
def import_the_audit() -> None:
    """Imports Great Expectations; done the wrong way in a run worker, that ends the process with exit code 0."""
    from checks._gx import Suites

    assert Suites.__name__


@dg.job
def hold() -> None:
    hold_the_pool()


@dg.job
def gx_import() -> None:
    import_the_audit()


defs = dg.Definitions.merge(
    build_stream_definitions(BY_HAND),
    dg.Definitions(jobs=[hold, gx_import], resources=resources(), executor=dg.in_process_executor),
)
