"""Looks for a large payment that follows a small one of the same card. Rules say how large, and may change."""

from engine.api import (
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
)
from engine.connectors.table import TableSink
from tests.ports.source import OneByOne

RULES = [("small", 100), ("large", 10_000)]
PAYMENTS = [("a", 50), ("b", 70), ("a", 20_000), ("b", 900), ("b", 30_000), ("c", 99), ("c", 10_000), ("a", 15_000)]
RULE = "name string, cents long"
PAYMENT = "card string, cents long"
LIMITS = MapStateDescriptor("limits", "string", "long")


class SmallThenLarge(KeyedBroadcastProcessFunction):
    def __init__(self):
        self.was_small = None

    def open(self, runtime_context: RuntimeContext):
        self.was_small = runtime_context.get_state(ValueStateDescriptor("was small", "boolean"))

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(LIMITS).put(value["name"], value["cents"])

    def process_element(self, value, ctx):
        limits = ctx.get_broadcast_state(LIMITS)
        if self.was_small.value() and value["cents"] >= limits.get("large"):
            yield {"card": value["card"], "cents": value["cents"]}
        self.was_small.update(value["cents"] < limits.get("small"))


BEHIND_THE_RULES = "2 s"
"""Nothing orders two streams: give the rules the time to come first."""


def job(env: StreamEnvironment) -> None:
    rules = env.from_elements([{"name": name, "cents": cents} for name, cents in RULES], RULE, uid="rules")
    payments = [{"card": card, "cents": cents} for card, cents in PAYMENTS]
    payments = env.from_source(OneByOne(payments, after=BEHIND_THE_RULES), PAYMENT, uid="payments")
    frauds = (
        payments.key_by("card").connect(rules.broadcast(LIMITS)).process(SmallThenLarge(), schema=PAYMENT, uid="frauds")
    )
    frauds.sink_to(TableSink("frauds"), uid="out")
