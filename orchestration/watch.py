"""The sensor of a job: reports the job's history to Dagster, and starts the job again if it should run but does not.

It reads `history/events.jsonl` behind a cursor, by whole minutes. The events in Dagster say what was reported: a sensor
that reported and died before its cursor was saved reports nothing twice.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import dagster as dg
import msgspec

from engine.host.rotated import BEGIN, Position
from engine.observe.client import JobClient
from engine.observe.history import History
from engine.protocol import ledger
from orchestration.facts import Seen, gather, status_of
from orchestration.gold import touched_days
from orchestration.health import Health, State, look
from orchestration.incidents import present
from orchestration.lineage import Output
from orchestration.minutes import Minute, minutes
from orchestration.pruning import prune
from orchestration.reporting import checkpoints_event, reported, restarts_event, table_events
from orchestration.resources import WeirStore
from orchestration.spec import StreamSpec
from orchestration.streams import HEALTHY, StreamConfig, judged

MOST_A_TICK = 100
"""The most minutes reported at one tick: a backlog must not exceed a sensor's 60 s. Plots show the last hundred."""

START_AGAIN_EVERY_MS = 300_000
SAY_AGAIN_MS = 60_000
PRUNE_EVERY_MS = 3_600_000

AssetEvent = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


class Cursor(msgspec.Struct, frozen=True):
    """How far the history was read, the ledger's totals there, and the state that was last reported, with its time.

    Totals are None until a checkpoint was read: the history of an old job does not begin at its first one.
    """

    store: str = ""
    position: Position = BEGIN
    totals: dict[str, int] | None = None
    state: str = ""
    state_ms: int = 0
    seen: Seen = Seen()
    pruned_ms: int = 0


def watch_sensor(spec: StreamSpec, start_job: Any, outputs: Sequence[Output]) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{spec.job}_watch",
        job=start_job,
        minimum_interval_seconds=spec.watch_every_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Reports the checkpoints, the tables and the health of {spec.job}; starts it again if it is gone.",
    )
    def watch(context: dg.SensorEvaluationContext, weir: WeirStore) -> dg.SensorResult:
        client = weir.client(context.instance, spec)
        cursor = _resume(context.cursor, client)
        health = look(client.folder, spec.silent_after_s)
        now_ms = time.time_ns() // 1_000_000
        if health.state is State.UNKNOWN:
            return dg.SensorResult(skip_reason=f"{spec.job}: {health.detail}")
        parts = list(islice(_minutes(client, cursor, now_ms), MOST_A_TICK))
        days = _days(spec, client, outputs, parts)
        found, cursor = _reports(context.instance, spec, client, health, cursor, parts, outputs, days, now_ms)
        if now_ms - cursor.pruned_ms > PRUNE_EVERY_MS:
            prune(context.instance, spec, outputs, now_ms)
            cursor = msgspec.structs.replace(cursor, pruned_ms=now_ms)
        new_days = sorted({day for of_table in days.values() for day in of_table})
        return dg.SensorResult(
            run_requests=list(_start_again(spec, client, health, now_ms)),
            skip_reason=None if health.start_again else f"{health.state.value}: {_said(parts)}",
            asset_events=found,
            dynamic_partitions_requests=_days_request(context.instance, spec, new_days),
            cursor=msgspec.json.encode(cursor).decode(),
        )

    return watch


def _said(parts: Sequence[Minute]) -> str:
    return f"{sum(len(part.completed) for part in parts)} new checkpoints"


def _minutes(client: JobClient, cursor: Cursor, now_ms: int) -> Iterator[Minute]:
    return minutes(History(client.store, client.name).after(cursor.position), cursor.totals, now_ms)


def _reports(
    instance: dg.DagsterInstance,
    spec: StreamSpec,
    client: JobClient,
    health: Health,
    cursor: Cursor,
    parts: Sequence[Minute],
    outputs: Sequence[Output],
    days: Mapping[str, Sequence[str]],
    now_ms: int,
) -> tuple[list[AssetEvent], Cursor]:
    """Returns what Dagster has to hear of these minutes and of the job's health, and the cursor behind them."""
    speaks = _is_news(health, cursor, now_ms)
    status = status_of(client, health) if speaks or parts else None
    found = _of_history(instance, spec, client, parts)
    found += table_events(instance, spec, client, outputs, parts, status, days, now_ms)
    if parts:
        cursor = msgspec.structs.replace(cursor, position=parts[-1].end, totals=_kept(parts[-1].totals))
    if not speaks:
        return found, cursor
    seen = cursor.seen.after(health, status, now_ms)
    wrong = [] if health.state is State.STOPPED else list(_wrong(spec, client, health, seen, now_ms))
    found.append(_evaluation(spec, health, wrong))
    return found, msgspec.structs.replace(cursor, state=health.state.value, state_ms=now_ms, seen=seen)


def _of_history(
    instance: dg.DagsterInstance, spec: StreamSpec, client: JobClient, parts: Sequence[Minute]
) -> list[AssetEvent]:
    found: list[AssetEvent] = []
    completed = [one.event.completed_at_ms for part in parts for one in part.completed]
    known = reported(instance, spec, min(completed)) if completed else frozenset()
    found += [event for part in parts if (event := checkpoints_event(spec, part, known)) is not None]
    if any(part.restarted for part in parts):
        restarts = list(reversed(client.timeline().restarts))
        event = restarts_event(spec, instance, restarts, parts[-1].until_ms)
        found += [event] if event is not None else []
    return found


def _kept(totals: Mapping[str, int] | None) -> dict[str, int] | None:
    """Returns the totals that rows are counted by."""
    if totals is None:
        return None
    return {n: total for n, total in totals.items() if n.startswith((ledger.SINK, ledger.source_rows("")))}


def _days(
    spec: StreamSpec, client: JobClient, outputs: Sequence[Output], parts: Sequence[Minute]
) -> dict[str, list[str]]:
    """Returns the days of event time that the gold's table got rows of, by the uid of its sink."""
    gold, epochs = spec.gold, [one.event.epoch for part in parts for one in part.completed]
    uids = [out.uid for out in outputs if gold is not None and out.key == spec.table_key(gold.table)]
    if gold is None or not epochs or not uids:
        return {}
    return {uids[0]: touched_days(gold, client.store, spec.job, min(epochs), max(epochs))}


def _days_request(
    instance: dg.DagsterInstance, spec: StreamSpec, days: Sequence[str]
) -> list[dg.AddDynamicPartitionsRequest]:
    there = set(instance.get_dynamic_partitions(spec.partitions_name)) if days else set()
    news = [day for day in days if day not in there]
    return [dg.AddDynamicPartitionsRequest(spec.partitions_name, news)] if news else []


def _is_news(health: Health, cursor: Cursor, now_ms: int) -> bool:
    """True if the state has changed, and once a minute while the job runs: the age of a check shows the last look."""
    if health.state is State.STARTING:
        return False
    return health.state.value != cursor.state or (health.answers and now_ms - cursor.state_ms >= SAY_AGAIN_MS)


def _resume(text: str | None, client: JobClient) -> Cursor:
    """Returns the saved cursor, or a new one if the job was moved to another store."""
    cursor = msgspec.json.decode(text, type=Cursor) if text else Cursor()
    return cursor if cursor.store == client.store else Cursor(store=client.store)


def _wrong(spec: StreamSpec, client: JobClient, health: Health, seen: Seen, now_ms: int) -> Iterator[tuple[str, str]]:
    return present(gather(client, health, seen), spec.alerts, seen.running_ms, now_ms)


def _evaluation(spec: StreamSpec, health: Health, wrong: Sequence[tuple[str, str]]) -> dg.AssetCheckEvaluation:
    result = judged(health, wrong)
    return dg.AssetCheckEvaluation(
        asset_key=spec.stream_key,
        check_name=HEALTHY,
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata=result.metadata,
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
