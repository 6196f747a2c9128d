"""Counts the clicks on each page in windows of ten seconds. Clicks that come too late get an output of their own."""

import json
import time

from pyflink.common import Configuration, Duration, Row, Time, Types
from pyflink.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from pyflink.datastream import OutputTag, StreamExecutionEnvironment
from pyflink.datastream.functions import AggregateFunction, ProcessWindowFunction
from pyflink.datastream.window import TumblingEventTimeWindows

CLICKS = [("home", 1), ("cart", 5), ("home", 12), ("home", 4), ("cart", 14), ("home", 25), ("cart", 3), ("home", 27)]
CLICK = Types.ROW_NAMED(["page", "at"], [Types.STRING(), Types.LONG()])
LATE = OutputTag("late", Types.ROW_NAMED(["page", "at"], [Types.STRING(), Types.LONG()]))


class ClickTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value.at


class Count(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, left, right):
        return left + right


class WithWindow(ProcessWindowFunction):
    def process(self, key, context, elements):
        for n in elements:
            yield Row(page=key, start=context.window().start, clicks=n)


def slowly(click):
    """Flink makes watermarks by the clock: only a record that comes some time after another one can be late."""
    time.sleep(0.3)
    return click


def main():
    settings = Configuration()
    settings.set_integer("python.fn-execution.bundle.size", 1)
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    env.set_parallelism(1)
    env.get_config().set_auto_watermark_interval(10)
    clicks = env.from_collection([Row(page=page, at=1000 * at) for page, at in CLICKS], type_info=CLICK)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(2))
    counts = (
        clicks.map(slowly, output_type=CLICK)
        .disable_chaining()
        .assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(ClickTime()))
        .key_by(lambda click: click.page, key_type=Types.STRING())
        .window(TumblingEventTimeWindows.of(Time.seconds(10)))
        .allowed_lateness(5000)
        .side_output_late_data(LATE)
        .aggregate(
            Count(),
            WithWindow(),
            accumulator_type=Types.LONG(),
            output_type=Types.ROW_NAMED(["page", "start", "clicks"], [Types.STRING(), Types.LONG(), Types.LONG()]),
        )
    )
    late = counts.get_side_output(LATE)
    lines = counts.map(lambda row: json.dumps({"table": "counts", **row.as_dict()}), output_type=Types.STRING()).union(
        late.map(lambda row: json.dumps({"table": "late", **row.as_dict()}), output_type=Types.STRING())
    )
    with lines.execute_and_collect() as results:
        print(*sorted(results), sep="\n")


if __name__ == "__main__":
    main()
