"""Counts the events of each user, and emits the count when the user has done nothing for a minute."""

import json
import time

from pyflink.common import Configuration, Row, Types
from pyflink.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor

EVENTS = [("ann", 0), ("bob", 10), ("ann", 30), ("bob", 75), ("ann", 85), ("cid", 200), ("ann", 210), ("cid", 215)]
EVENT = Types.ROW_NAMED(["user", "at"], [Types.STRING(), Types.LONG()])


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value.at


class CountWithTimeout(KeyedProcessFunction):
    def __init__(self):
        self.count = None
        self.last = None

    def open(self, runtime_context: RuntimeContext):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        self.last.update(ctx.timestamp())
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)

    def on_timer(self, timestamp, ctx):
        if timestamp == self.last.value() + 60_000:
            yield Row(user=ctx.get_current_key(), n=self.count.value(), until=timestamp)


def slowly(event):
    """Flink makes watermarks by the clock: give it the time to make one behind each event."""
    time.sleep(0.3)
    return event


def main():
    settings = Configuration()
    settings.set_integer("python.fn-execution.bundle.size", 1)
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    env.set_parallelism(1)
    env.get_config().set_auto_watermark_interval(10)
    events = env.from_collection([Row(user=user, at=1000 * at) for user, at in EVENTS], type_info=EVENT)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(EventTime())
    counts = (
        events.map(slowly, output_type=EVENT)
        .disable_chaining()
        .assign_timestamps_and_watermarks(strategy)
        .key_by(lambda event: event.user, key_type=Types.STRING())
        .process(
            CountWithTimeout(),
            output_type=Types.ROW_NAMED(["user", "n", "until"], [Types.STRING(), Types.LONG(), Types.LONG()]),
        )
    )
    with counts.execute_and_collect() as results:
        print(*sorted(json.dumps({"table": "counts", **row.as_dict()}) for row in results), sep="\n")


if __name__ == "__main__":
    main()
