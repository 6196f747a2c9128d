"""The sensor of a job: reports the job's history to Dagster, and starts the job again if it should run but does not.

It reads `history/events.jsonl` behind a cursor. The time of the last materialization in Dagster says what was reported:
a sensor that reported and died before its cursor was saved reports nothing twice.
"""

import time
from collections.abc import Iterator
from typing import Any

import dagster as dg
import msgspec

from engine.connectors.table import tables_of
from engine.core.errors import WeirError
from engine.host.rotated import BEGIN, Position
from engine.jobmaster.events import Completed
from engine.observe.client import JobClient
from engine.observe.history import History
from orchestration.health import Health, State, look
from orchestration.resources import WeirStore, metadata_of
from orchestration.spec import StreamSpec
from orchestration.streams import HEALTHY, StreamConfig, health_metadata, severity

MOST_A_TICK = 100
"""The most checkpoints reported at one tick: a backlog must not exceed a sensor's 60 s. Plots show the last hundred."""

START_AGAIN_EVERY_MS = 300_000
SAY_AGAIN_MS = 60_000
COMPLETED_AT = "completed_at_ms"


class Cursor(msgspec.Struct, frozen=True):
    """How far the history was read, the ledger's totals there, and the state that was last reported, with its time.

    Totals are None until a checkpoint was read: the history of an old job does not begin at its first one.
    """

    store: str = ""
    position: Position = BEGIN
    rows_read: int | None = None
    rows_committed: int | None = None
    state: str = ""
    state_ms: int = 0


def watch_sensor(spec: StreamSpec, start_job: Any) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{spec.job}_watch",
        job=start_job,
        minimum_interval_seconds=spec.watch_every_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Reports the checkpoints, the sinks and the health of {spec.job}; starts it again if it is gone.",
    )
    def watch(context: dg.SensorEvaluationContext, weir: WeirStore) -> dg.SensorResult:
        client = weir.client(context.instance, spec)
        cursor = _resume(context.cursor, client)
        health = look(client.folder, spec.silent_after_s)
        now_ms = time.time_ns() // 1_000_000
        if health.state is State.UNKNOWN:
            return dg.SensorResult(skip_reason=f"{spec.job}: {health.detail}")
        latest = context.instance.get_latest_materialization_event(spec.checkpoints_key)
        reported_ms = int(metadata_of(latest).get(COMPLETED_AT, 0))
        events, cursor = new_checkpoints(spec, client, cursor, reported_ms)
        found: list[dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation] = list(events)
        if events and health.answers:
            found += _sinks(spec, client, now_ms, events[-1])
        if _is_news(health, cursor, now_ms):
            found.append(_evaluation(spec, health))
            cursor = msgspec.structs.replace(cursor, state=health.state.value, state_ms=now_ms)
        return dg.SensorResult(
            run_requests=list(_start_again(spec, client, health, now_ms)),
            skip_reason=None if health.start_again else f"{health.state.value}: {len(events)} new checkpoints",
            asset_events=found,
            cursor=msgspec.json.encode(cursor).decode(),
        )

    return watch


def _is_news(health: Health, cursor: Cursor, now_ms: int) -> bool:
    """True if the state has changed, and once a minute while the job runs: the age of a check shows the last look."""
    if health.state is State.STARTING:
        return False
    return health.state.value != cursor.state or (health.answers and now_ms - cursor.state_ms >= SAY_AGAIN_MS)


def _resume(text: str | None, client: JobClient) -> Cursor:
    """Returns the saved cursor, or a new one if the job was moved to another store."""
    cursor = msgspec.json.decode(text, type=Cursor) if text else Cursor()
    return cursor if cursor.store == client.store else Cursor(store=client.store)


def new_checkpoints(
    spec: StreamSpec, client: JobClient, cursor: Cursor, reported_ms: int
) -> tuple[list[dg.AssetMaterialization], Cursor]:
    """Returns one materialization per completed checkpoint; its rows are the difference of two ledgers."""
    found: list[dg.AssetMaterialization] = []
    for event, position in History(client.store, client.name).after(cursor.position):
        if isinstance(event, Completed):
            if event.epoch == 1:  # the job is new, or was deleted and begun anew: its totals start at zero
                cursor = msgspec.structs.replace(cursor, rows_read=0, rows_committed=0)
            read, committed = _total(event.ledger, "source:"), _total(event.ledger, "sink:")
            if event.completed_at_ms > reported_ms:
                rows = {
                    "rows_read": _grown(cursor.rows_read, read),
                    "rows_committed": _grown(cursor.rows_committed, committed),
                }
                found.append(_materialization(spec, event, {n: r for n, r in rows.items() if r is not None}))
            cursor = msgspec.structs.replace(cursor, rows_read=read, rows_committed=committed)
        cursor = msgspec.structs.replace(cursor, position=position)
        if len(found) == MOST_A_TICK:
            break
    return found, cursor


def _grown(before: int | None, now: int) -> int | None:
    return max(0, now - before) if before is not None else None


def _total(ledger: dict[str, int], prefix: str) -> int:
    return sum(count for name, count in ledger.items() if name.startswith(prefix))


def _materialization(spec: StreamSpec, event: Completed, rows: dict[str, int]) -> dg.AssetMaterialization:
    """Returns a checkpoint as an event. Dagster plots numbers, so ids are given as text."""
    return dg.AssetMaterialization(
        spec.checkpoints_key,
        description=f"checkpoint {event.checkpoint} is epoch {event.epoch}",
        metadata={
            "checkpoint": dg.MetadataValue.text(str(event.checkpoint)),
            "epoch": dg.MetadataValue.text(str(event.epoch)),
            "duration_ms": event.duration_ms,
            "alignment_ms": event.alignment_ms,
            "sync_ms": event.sync_ms,
            "async_ms": event.async_ms,
            "start_delay_ms": event.start_delay_ms,
            "state_bytes": event.state_bytes,
            **rows,
            "attempt": event.attempt,
            COMPLETED_AT: dg.MetadataValue.text(str(event.completed_at_ms)),
        },
    )


def _sinks(
    spec: StreamSpec, client: JobClient, now_ms: int, newest: dg.AssetMaterialization
) -> list[dg.AssetObservation]:
    """Observes the sinks. `lag_s` is how far event time is behind the clock, `commit_age_s` the last commit's age."""
    try:
        sinks = client.status().sinks
    except WeirError:
        return []  # the JobMaster is being replaced; the next tick tries again
    committed_ms = int(str(newest.metadata[COMPLETED_AT].value))
    metadata: dict[str, Any] = {
        "rows": sum(sink.rows for sink in sinks.values()),
        "commit_age_s": round(max(0, now_ms - committed_ms) / 1000, 1),
    }
    marks = [sink.watermark_ms for sink in sinks.values() if sink.watermark_ms is not None]
    if len(marks) == len(sinks) and marks:
        metadata["watermark"] = dg.MetadataValue.timestamp(min(marks) / 1000)
        metadata["lag_s"] = round((now_ms - min(marks)) / 1000, 1)
    if len(sinks) > 1:
        metadata |= {f"rows {uid}": sink.rows for uid, sink in sinks.items()}
    metadata |= {f"table {name}": dg.MetadataValue.path(path) for name, path in tables_of(client.store, client.name)}
    return [dg.AssetObservation(spec.sinks_key, metadata=metadata)]


def _evaluation(spec: StreamSpec, health: Health) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=spec.stream_key,
        check_name=HEALTHY,
        passed=health.healthy,
        severity=severity(health),
        description=health.detail,
        metadata=health_metadata(health),
    )


def _start_again(spec: StreamSpec, client: JobClient, health: Health, now_ms: int) -> Iterator[dg.RunRequest]:
    """Requests a run that starts the job again: one per five minutes, since Dagster ignores a run key that it knows."""
    desired = client.folder.read_desired_here()
    if not health.start_again or desired is None:
        return
    again = StreamConfig.of(desired.launch).model_copy(update={"as_last_time": True})
    yield dg.RunRequest(
        run_key=f"{client.store}-{desired.at_ms}-{now_ms // START_AGAIN_EVERY_MS}",
        run_config=dg.RunConfig(ops={spec.stream_key.to_python_identifier(): again}),
        tags={"weir/why": health.detail},
    )
