"""A payment of less than 1, and directly after it, with the same card, one of more than 500."""

from typing import Any

from assets.card_fraud.source import LARGE_CENTS, PAYMENTS, SMALL_CENTS
from engine.api import CEP, Match, Pattern, StreamEnvironment
from engine.connectors.table import TableSink

SMALL_THEN_LARGE = (
    Pattern.begin("small")
    .where(lambda payment: payment["cents"] < SMALL_CENTS)
    .next("large")
    .where(lambda payment: payment["cents"] > LARGE_CENTS)
)


def fraud(match: Match) -> dict[str, Any]:
    small, large = match["small"][0], match["large"][0]
    return {"card": large["card"], "tried": small["cents"], "taken": large["cents"], "ts": large["ts"]}


def job(env: StreamEnvironment) -> None:
    found = CEP.pattern(PAYMENTS.read(env).key_by("card"), SMALL_THEN_LARGE)
    frauds = found.select(fraud, uid="frauds", schema="card long, tried long, taken long, ts timestamp")
    frauds.sink_to(TableSink("frauds"), uid="out")
