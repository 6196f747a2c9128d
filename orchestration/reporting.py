"""What Dagster hears of a job's history: checkpoints by minutes, restarts, and the tables with what readers see.

Only int and float metadata are plotted, so each materialization has the figures of its minute as numbers, and the
checkpoints themselves as a table, one row each.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from engine.connectors.table import tables_of
from engine.jobmaster.events import Completed
from engine.jobmaster.status import JobStatus
from engine.observe.client import JobClient
from engine.observe.history import History
from engine.observe.timeline import RestartRecord
from engine.protocol import ledger
from orchestration.lineage import Output, partitions_of
from orchestration.metadata import rows_table
from orchestration.minutes import Counted, Minute, count
from orchestration.resources import metadata_of
from orchestration.spec import StreamSpec

EACH = "each"
"""The metadata entry with a row for each checkpoint."""
COMPLETED_AT = "completed_at_ms"
RESTARTED_AT = "restarted_at_ms"
PAGE = 100
RUN_PATIENCE_S = 10.0

_LONGEST = ("duration_ms", "alignment_ms", "sync_ms", "async_ms", "start_delay_ms")


def checkpoints_event(
    spec: StreamSpec, minute: Minute, reported: frozenset[int] = frozenset()
) -> dg.AssetMaterialization | dg.AssetObservation | None:
    """Returns a minute's checkpoints as one event; None if there is nothing that is not reported yet.

    Times are those of the slowest checkpoint, rows are sums, the state's size is that of the last.
    """
    news = [counted for counted in minute.completed if counted.event.completed_at_ms not in reported]
    failed = {"failed": len(minute.failed)} if minute.failed else {}
    lost = [f"checkpoint {event.checkpoint} failed: {event.why}: {event.detail}" for event in minute.failed]
    reasons = {"why_failed": dg.MetadataValue.text("\n".join(lost))} if lost else {}
    if not news:
        if not lost:
            return None
        return dg.AssetObservation(spec.checkpoints_key, description=lost[-1], metadata={**failed, **reasons})
    return _materialization(spec, news, {"failed": len(minute.failed), **reasons})


def _materialization(spec: StreamSpec, news: Sequence[Counted], more: Mapping[str, Any]) -> dg.AssetMaterialization:
    last = news[-1].event
    epochs = f"epoch {last.epoch}" if len(news) == 1 else f"epochs {news[0].event.epoch} to {last.epoch}"
    read, committed = _sum(one.rows_read for one in news), _sum(one.rows_committed for one in news)
    rows = {"rows_read": read, "rows_committed": committed}
    return dg.AssetMaterialization(
        spec.checkpoints_key,
        description=f"{len(news)} checkpoint{'s' if len(news) > 1 else ''}: {epochs}",
        metadata={
            "epoch": dg.MetadataValue.text(str(last.epoch)),  # numbers are plotted, and an id is no figure
            "checkpoints": len(news),
            **{name: max(float(getattr(one.event, name)) for one in news) for name in _LONGEST},
            "state_bytes": last.state_bytes,
            **{name: value for name, value in rows.items() if value is not None},
            **more,
            EACH: rows_table([_row(one) for one in news]),
        },
    )


def _sum(values: Any) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _row(one: Counted) -> dict[str, Any]:
    event = one.event
    at = datetime.fromtimestamp(event.completed_at_ms / 1000, UTC)
    return {
        "checkpoint": event.checkpoint,
        "epoch": event.epoch,
        "at": f"{at:%H:%M:%S}",
        "duration_ms": round(event.duration_ms, 1),
        "alignment_ms": round(event.alignment_ms, 1),
        "state_bytes": event.state_bytes,
        "rows_read": one.rows_read,
        "rows_committed": one.rows_committed,
        "attempt": event.attempt,
        COMPLETED_AT: event.completed_at_ms,
    }


def reported(instance: dg.DagsterInstance, spec: StreamSpec, since_ms: int) -> frozenset[int]:
    """Returns the completion times, from `since_ms` on, of the checkpoints that Dagster knows already.

    A run that triggered a checkpoint reports it itself, and a sensor may have died before its cursor was saved.
    """
    found: set[int] = set()
    cursor: str | None = None
    while True:
        page = instance.fetch_materializations(spec.checkpoints_key, limit=PAGE, cursor=cursor)
        for record in page.records:
            if record.timestamp * 1000 < since_ms:  # an event is always stored after its checkpoints
                return frozenset(found)
            found |= completions(record.asset_materialization)
        if not page.has_more:
            return frozenset(found)
        cursor = page.cursor


def completions(materialization: dg.AssetMaterialization | None) -> set[int]:
    each = materialization.metadata.get(EACH) if materialization is not None else None
    return {int(str(r.data[COMPLETED_AT])) for r in each.records} if isinstance(each, dg.TableMetadataValue) else set()


def own_checkpoint(
    instance: dg.DagsterInstance, spec: StreamSpec, client: JobClient, epoch: int
) -> dg.AssetMaterialization | None:
    """Returns the event of a checkpoint that a run has triggered; None if the sensor was faster, or nobody knows it."""
    deadline = time.monotonic() + RUN_PATIENCE_S
    while (found := _find(client, epoch)) is None and time.monotonic() < deadline:
        time.sleep(0.2)  # in a bucket the history is written each second
    if found is None or found.event.completed_at_ms in reported(instance, spec, found.event.completed_at_ms):
        return None
    return _materialization(spec, [found], {"failed": 0})


def _find(client: JobClient, epoch: int) -> Counted | None:
    """Returns the newest checkpoint of this epoch in the history."""
    found, before = None, None
    for event in History(client.store, client.name).events():
        if isinstance(event, Completed):
            found = count(event, before) if event.epoch == epoch else found
            before = event.ledger
    return found


def restarts_event(
    spec: StreamSpec, instance: dg.DagsterInstance, restarts: Sequence[RestartRecord], until_ms: int
) -> dg.AssetMaterialization | None:
    """Returns the restarts before `until_ms` that Dagster does not know; None if there is none. Oldest first."""
    latest = metadata_of(instance.get_latest_materialization_event(spec.restarts_key))
    known_ms = int(latest.get(RESTARTED_AT, 0))
    news = [restart for restart in restarts if known_ms < restart.at_ms < until_ms]
    if not news:
        return None
    recoveries = [restart.recovery_ms for restart in news if restart.recovery_ms is not None]
    last = news[-1]
    return dg.AssetMaterialization(
        spec.restarts_key,
        description=f"{last.text}: {last.detail}" if last.detail else last.text,
        metadata={
            "restarts": len(news),
            **({"recovery_ms": max(recoveries)} if recoveries else {}),
            "cause": last.cause,
            RESTARTED_AT: dg.MetadataValue.text(str(last.at_ms)),
            EACH: rows_table([_restart_row(restart) for restart in news[-PAGE:]]),
        },
    )


def _restart_row(restart: RestartRecord) -> dict[str, Any]:
    at = datetime.fromtimestamp(restart.at_ms / 1000, UTC)
    return {
        "at": f"{at:%H:%M:%S}",
        "attempt": restart.attempt,
        "cause": restart.cause,
        "says": f"{restart.text}: {restart.detail}" if restart.detail else restart.text,
        "operator": restart.uid,
        "recovery_ms": restart.recovery_ms,
    }


def table_events(
    instance: dg.DagsterInstance,
    spec: StreamSpec,
    client: JobClient,
    outputs: Sequence[Output],
    parts: Sequence[Minute],
    status: JobStatus | None,
    days: Mapping[str, Sequence[str]],
    now_ms: int,
) -> list[dg.AssetMaterialization]:
    """Returns an event for each sink that got rows in these minutes, or one for each day of event time that they touch.

    `lag_s` is how far event time is behind the clock.
    """
    completed = [one for part in parts for one in part.completed]
    places = dict(tables_of(client.store, client.name)) if completed else {}
    found = []
    for output in outputs if completed else ():
        partitioned = partitions_of(spec, output.key) is not None
        # Without a known day, as of a table in a bucket, the table as a whole has rows.
        news = (days.get(output.uid) or (None,)) if partitioned else (None,)
        known = {day: _reported_until(instance, output.key, day) for day in news}
        counted = [one for one in completed if one.event.completed_at_ms > min(known.values())]
        if not counted:
            continue
        last = counted[-1].event
        rows = sum(one.by_sink.get(output.uid, 0) for one in counted)
        total = last.ledger.get(ledger.sink_rows(output.uid), 0)
        if not rows and counted[0].rows_read is not None:
            continue
        metadata: dict[str, Any] = {
            "rows": total,
            "new_rows": rows,
            "epoch": dg.MetadataValue.text(str(last.epoch)),
            COMPLETED_AT: dg.MetadataValue.text(str(last.completed_at_ms)),
        }
        if output.is_table and (place := places.get(output.key.path[-1])) is not None:
            metadata["table"] = dg.MetadataValue.path(place)
        mark_ms = status.sinks[output.uid].watermark_ms if status is not None and output.uid in status.sinks else None
        if mark_ms is not None:
            metadata["watermark"] = dg.MetadataValue.timestamp(mark_ms / 1000)
            metadata["lag_s"] = round((now_ms - mark_ms) / 1000, 1)
        for day in (day for day in news if known[day] < last.completed_at_ms):
            found.append(dg.AssetMaterialization(output.key, metadata=metadata, partition=day))
    return found


def _reported_until(instance: dg.DagsterInstance, key: dg.AssetKey, day: str | None) -> int:
    """Returns the time up to which a table, or a day of it, was reported: a sensor may die between two days."""
    of = dg.AssetRecordsFilter(key, asset_partitions=[day]) if day is not None else key
    records = instance.fetch_materializations(of, limit=1).records
    return int(metadata_of(records[0].event_log_entry).get(COMPLETED_AT, 0)) if records else 0
