"""Looks for a large payment that follows a small one of the same card. Rules say how large, and may change."""

import json
import time

from pyflink.common import Row, Types
from pyflink.datastream import RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.functions import KeyedBroadcastProcessFunction
from pyflink.datastream.state import MapStateDescriptor, ValueStateDescriptor

RULES = [("small", 100), ("large", 10_000)]
PAYMENTS = [("a", 50), ("b", 70), ("a", 20_000), ("b", 900), ("b", 30_000), ("c", 99), ("c", 10_000), ("a", 15_000)]
RULE = Types.ROW_NAMED(["name", "cents"], [Types.STRING(), Types.LONG()])
PAYMENT = Types.ROW_NAMED(["card", "cents"], [Types.STRING(), Types.LONG()])
LIMITS = MapStateDescriptor("limits", Types.STRING(), Types.LONG())


class SmallThenLarge(KeyedBroadcastProcessFunction):
    def __init__(self):
        self.was_small = None

    def open(self, runtime_context: RuntimeContext):
        self.was_small = runtime_context.get_state(ValueStateDescriptor("was small", Types.BOOLEAN()))

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(LIMITS).put(value.name, value.cents)

    def process_element(self, value, ctx):
        limits = ctx.get_broadcast_state(LIMITS)
        if self.was_small.value() and value.cents >= limits.get("large"):
            yield Row(card=value.card, cents=value.cents)
        self.was_small.update(value.cents < limits.get("small"))


def behind_the_rules(payment):
    """Nothing orders two streams: give the rules the time to come first."""
    time.sleep(2)
    return payment


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    rules = env.from_collection([Row(name=name, cents=cents) for name, cents in RULES], RULE)
    payments = env.from_collection([Row(card=card, cents=cents) for card, cents in PAYMENTS], PAYMENT)
    frauds = (
        payments.map(behind_the_rules, output_type=PAYMENT)
        .key_by(lambda payment: payment.card, key_type=Types.STRING())
        .connect(rules.broadcast(LIMITS))
        .process(SmallThenLarge(), output_type=PAYMENT)
    )
    with frauds.execute_and_collect() as results:
        print(*sorted(json.dumps({"table": "frauds", **row.as_dict()}) for row in results), sep="\n")


if __name__ == "__main__":
    main()
