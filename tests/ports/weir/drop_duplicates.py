"""Drops events whose id came before, as long as the watermark has not forgotten it."""

from engine.api import KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor, WatermarkStrategy
from engine.connectors.table import TableSink
from tests.ports.source import OneByOne

BEGIN = 1_700_000_000
BATCHES = [
    [("a", 0), ("b", 2), ("a", 1)],
    [("a", 3), ("c", 8)],
    [("c", 9)],
    [("d", 40)],
    [("d", 41)],
    [("a", 42), ("b", 4), ("d", 45)],
]


class DropDuplicatesWithinWatermark(KeyedProcessFunction):
    def open(self, context):
        self.seen = context.get_state(ValueStateDescriptor("seen", "boolean"))

    def process_element(self, value, context):
        late = context.timestamp() <= context.timer_service().current_watermark()
        if late or self.seen.value():
            return
        self.seen.update(True)
        context.timer_service().register_event_time_timer(context.timestamp() + 10_000)
        yield value

    def on_timer(self, timestamp, context):
        self.seen.clear()


def job(env: StreamEnvironment) -> None:
    source = OneByOne([{"id": id_, "at": 1000 * (BEGIN + at)} for batch in BATCHES for id_, at in batch])
    events = env.from_source(source, "id string, at long", uid="events")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds").with_timestamps("at")
    unique = (
        events.assign_timestamps_and_watermarks(strategy)
        .key_by("id")
        .process(DropDuplicatesWithinWatermark(), uid="unique")
    )
    unique.sink_to(TableSink("unique"), uid="out")
