"""Counts the events of each user, and emits the count when the user has done nothing for a minute."""

from engine.api import KeyedProcessFunction, RuntimeContext, StreamEnvironment, ValueStateDescriptor, WatermarkStrategy
from engine.connectors.table import TableSink
from tests.ports.source import OneByOne

EVENTS = [("ann", 0), ("bob", 10), ("ann", 30), ("bob", 75), ("ann", 85), ("cid", 200), ("ann", 210), ("cid", 215)]
EVENT = "user string, at long"


class CountWithTimeout(KeyedProcessFunction):
    def __init__(self):
        self.count = None
        self.last = None

    def open(self, runtime_context: RuntimeContext):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "long"))
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "long"))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        self.last.update(ctx.timestamp())
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)

    def on_timer(self, timestamp, ctx):
        if timestamp == self.last.value() + 60_000:
            yield {"user": ctx.get_current_key(), "n": self.count.value(), "until": timestamp}


def job(env: StreamEnvironment) -> None:
    events = env.from_source(OneByOne([{"user": user, "at": 1000 * at} for user, at in EVENTS]), EVENT, uid="events")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
    counts = (
        events.assign_timestamps_and_watermarks(strategy)
        .key_by("user")
        .process(
            CountWithTimeout(),
            schema="user string, n long, until long",
            uid="counts",
        )
    )
    counts.sink_to(TableSink("counts"), uid="out")
