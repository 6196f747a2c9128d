"""Events and statuses as a job would write them, for tests that have no job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.jobmaster.events import Completed
from engine.jobmaster.master import Phase
from engine.jobmaster.status import Checkpoints, JobStatus, SinkStatus


def completed(epoch: int, ledger: Mapping[str, int], **over: Any) -> Completed:
    """Returns the event of a checkpoint whose number is that of its epoch."""
    event = Completed(
        checkpoint=epoch,
        epoch=epoch,
        attempt="1.1",
        completed_at_ms=epoch * 1000,
        duration_ms=12.5,
        state_bytes=4096,
        start_delay_ms=1.0,
        alignment_ms=2.5,
        sync_ms=0.5,
        async_ms=7.0,
        final=False,
        ledger=dict(ledger),
        subtasks=[],
        at_ms=epoch * 1000,
        generation=1,
    )
    return msgspec.structs.replace(event, **over)


def running(job: str, sinks: Mapping[str, SinkStatus] | None = None) -> JobStatus:
    """Returns the status of a job that runs at parallelism 3 and has five epochs."""
    return JobStatus(
        job=job,
        path="tests.cluster.jobs:endless",
        phase=Phase.RUNNING,
        generation=1,
        attempt=1,
        parallelism=3,
        slots_needed=3,
        waiting_ms=None,
        guarantee="exactly once",
        started_at_ms=0,
        uptime_ms=0,
        restarts=0,
        last_failure=None,
        epoch=5,
        checkpoints=Checkpoints(1000, 5, 0, None, []),
        committed_rows={},
        read_rows={},
        malformed_rows={},
        late_rows={},
        untimed_rows={},
        slots=[],
        spark_ui=None,
        vertices=[],
        sinks=dict(sinks or {}),
    )
