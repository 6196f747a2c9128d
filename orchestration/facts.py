"""Gathers what is known of a job at one look: its status, its history and the disk of its store."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

import msgspec

from engine.core.errors import WeirError
from engine.host.places import local_folder
from engine.jobmaster.status import JobStatus
from engine.observe.client import JobClient
from engine.store.bucket import is_bucket
from orchestration.health import Health, State
from orchestration.incidents import Facts


class Seen(msgspec.Struct, frozen=True):
    """What earlier looks have found: since when all of them found the job running, and the watermark not moving.

    `read_rows` is what the sources had read when the watermark was first seen at `watermark_ms`.
    """

    running_ms: int | None = None
    interval_ms: int | None = None
    watermark_ms: int | None = None
    watermark_since_ms: int = 0
    read_rows: int = 0
    still_ms: int | None = None
    """How long the watermark has not moved although records were read; None: it moves, or there is nothing to read."""

    def after(self, health: Health, status: JobStatus | None, now_ms: int) -> Seen:
        """Returns what is known after one more look."""
        if health.state is not State.RUNNING:
            return msgspec.structs.replace(self, running_ms=None, watermark_ms=None, still_ms=None)
        running_ms = self.running_ms if self.running_ms is not None else now_ms
        if status is None:
            return msgspec.structs.replace(self, running_ms=running_ms)
        mark_ms, read = lowest_watermark(status), sum(status.read_rows.values())
        if mark_ms is None or mark_ms != self.watermark_ms:
            return Seen(running_ms, status.checkpoints.interval_ms, mark_ms, now_ms, read)
        still_ms = now_ms - self.watermark_since_ms if read > self.read_rows else None
        return msgspec.structs.replace(
            self, running_ms=running_ms, interval_ms=status.checkpoints.interval_ms, still_ms=still_ms
        )


def lowest_watermark(status: JobStatus) -> int | None:
    """Returns the lowest watermark of the sinks; None if one has none: at its start, at its end, without event time."""
    marks = [sink.watermark_ms for sink in status.sinks.values()]
    known = [mark for mark in marks if mark is not None]
    return min(known) if known and len(known) == len(marks) else None


def status_of(client: JobClient, health: Health) -> JobStatus | None:
    """Returns the status of a job; None if nobody answers, as while its JobMaster is replaced."""
    if not health.answers:
        return None
    try:
        return client.status()
    except WeirError:
        return None


def gather(
    client: JobClient,
    health: Health,
    seen: Seen,
    checks: Mapping[str, str] | None = None,
    unsure: frozenset[str] = frozenset(),
) -> Facts:
    timeline, heartbeat = client.timeline(), client.folder.read_heartbeat()
    last = timeline.last_completed
    return Facts(
        health=health,
        heartbeat_ms=heartbeat.at_ms if heartbeat is not None else None,
        restarts=timeline.restarts,
        started_ms=timeline.started_at_ms or 0,
        completed_ms=(last.ended_at_ms or 0) if last is not None else 0,
        interval_ms=seen.interval_ms,
        still_ms=seen.still_ms,
        free_bytes=free_bytes(client.store),
        checks=checks or {},
        unsure=unsure,
    )


def free_bytes(store: str) -> int | None:
    """Returns what is left on the disk of a store; None for a bucket, or if nobody can tell."""
    if is_bucket(store):
        return None
    try:
        return shutil.disk_usage(local_folder(store)).free
    except OSError:
        return None
