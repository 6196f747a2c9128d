"""The sensor `<job>_alerts`: posts to a webhook when something is wrong with a job, and again when it is over.

The address is a secret: it comes from the environment, and is never in a log, a tick or an error.
"""

import os
import time
from collections.abc import Sequence

import dagster as dg
import httpx
import msgspec
from dagster import AssetCheckKey
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)

from checks.live.look import LIVE_CHECKS
from orchestration.drills import CHECKS
from orchestration.facts import Seen, gather, status_of
from orchestration.health import State, look
from orchestration.incidents import CHECKPOINT, FAILED, RECOVERY, RESTARTS, SILENT, WATERMARK, Message, due
from orchestration.resources import WeirStore
from orchestration.spec import StreamSpec
from orchestration.upgrades import SAME_OUTPUT

WEBHOOK = "WEIR_ALERT_WEBHOOK"
POST_TIMEOUT_S = 10.0
LOOK_EVERY_S = 30

_LOOK_AT = {
    FAILED: "weir logs",
    SILENT: "weir status",
    RESTARTS: "weir restarts",
    RECOVERY: "weir restarts",
    CHECKPOINT: "weir checkpoints",
    WATERMARK: "weir status",
}
"""The command that shows more of an incident."""


class Said(msgspec.Struct, frozen=True):
    """The sensor's cursor: the incidents that were said and are not over, each with its time, and the last look."""

    store: str = ""
    incidents: dict[str, int] = {}
    looked_ms: int = 0
    seen: Seen = Seen()


def alerts_sensor(spec: StreamSpec) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{spec.job}_alerts",
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Posts to the webhook of {WEBHOOK} when something is wrong with {spec.job}, and when it is over.",
    )
    def alerts(context: dg.SensorEvaluationContext, weir: WeirStore) -> dg.SensorResult:
        url = os.environ.get(WEBHOOK)
        if not url:
            return dg.SensorResult(skip_reason=f"{WEBHOOK} is not set: nobody is alerted")
        client = weir.client(context.instance, spec)
        now_ms = time.time_ns() // 1_000_000
        said = _resume(context.cursor, client.store, now_ms)
        health = look(client.folder, spec.silent_after_s)
        if health.state is State.UNKNOWN:
            return dg.SensorResult(skip_reason=f"{spec.job}: {health.detail}", cursor=_encode(said))
        seen = said.seen.after(health, status_of(client, health), now_ms)
        facts = gather(client, health, seen, *_checks(context.instance, spec))
        messages = due(facts, spec.alerts, said.incidents, said.looked_ms, seen.running_ms, now_ms)
        sent, error = _send(url, spec.job, messages)
        if error:
            context.log.error(error)
        left = len(messages) - len(sent)
        # What could not be sent is found again at the next tick. A recovery that is over is found by the last look.
        looked_ms = said.looked_ms if left else now_ms
        said = Said(said.store, _after(said.incidents, sent, now_ms), looked_ms, seen)
        more = f"; {left} could not be sent, and are tried again: {error}" if left else ""
        return dg.SensorResult(
            skip_reason=f"{len(sent)} messages, {len(said.incidents)} open incidents{more}", cursor=_encode(said)
        )

    return alerts


def _resume(text: str | None, store: str, now_ms: int) -> Said:
    """Returns the saved cursor, or a new one if the job was moved to another store: what was before is no news."""
    said = msgspec.json.decode(text, type=Said) if text else Said()
    return said if said.store == store else Said(store=store, looked_ms=now_ms)


def _encode(said: Said) -> str:
    return msgspec.json.encode(said).decode()


def _checks(instance: dg.DagsterInstance, spec: StreamSpec) -> tuple[dict[str, str], frozenset[str]]:
    """Returns the red checks of drills, audits and rehearsals with their texts, and those that run just now."""
    keys = [AssetCheckKey(spec.drills_key, name) for name in CHECKS]
    keys += [AssetCheckKey(spec.audits_key, name) for name in LIVE_CHECKS]
    keys.append(AssetCheckKey(spec.rehearsals_key, SAME_OUTPUT))
    records = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    red: dict[str, str] = {}
    unsure = set()
    for key, record in records.items():
        name = f"{key.asset_key.to_user_string()} {key.name}"
        if record.status is AssetCheckExecutionRecordStatus.PLANNED:
            unsure.add(name)
        elif record.status is AssetCheckExecutionRecordStatus.FAILED and (text := _why_red(record)) is not None:
            red[name] = text
    return red, frozenset(unsure)


def _why_red(record: AssetCheckExecutionRecord) -> str | None:
    """Returns why a check is red; None if it only warns."""
    evaluation = record.event.asset_check_evaluation if record.event is not None else None
    if evaluation is None:
        return f"its run {record.run_id} failed"
    if evaluation.severity is dg.AssetCheckSeverity.WARN:
        return None
    return evaluation.description or "it did not pass"


def _send(url: str, job: str, messages: Sequence[Message]) -> tuple[list[Message], str]:
    """Posts messages in Slack's form, up to the first that fails. Returns those that were accepted, and the error."""
    sent: list[Message] = []
    with httpx.Client(timeout=POST_TIMEOUT_S) as http:
        for message in messages:
            try:
                answer = http.post(url, json={"text": _text(job, message)})
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                return sent, f"the webhook of {WEBHOOK} can't be reached: {type(error).__name__}"
            if not answer.is_success:
                return sent, f"the webhook of {WEBHOOK} answered {answer.status_code}"
            sent.append(message)
    return sent, ""


def _text(job: str, message: Message) -> str:
    more = _LOOK_AT.get(message.kind)
    hint = f" (see: {more} {job})" if more and message.opens else ""
    return f"[weir] {job}: {message.text}{hint}"


def _after(incidents: dict[str, int], sent: Sequence[Message], now_ms: int) -> dict[str, int]:
    """Returns the open incidents after these messages."""
    left = dict(incidents)
    for message in sent:
        if message.closes:
            left.pop(message.kind, None)
        else:
            left[message.kind] = now_ms
    return left
