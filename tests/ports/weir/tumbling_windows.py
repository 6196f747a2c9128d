"""Counts the clicks on each page in windows of ten seconds. Clicks that come too late get an output of their own."""

from engine.api import (
    AggregateFunction,
    OutputTag,
    ProcessWindowFunction,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from engine.connectors.table import TableSink
from tests.ports.source import OneByOne

CLICKS = [("home", 1), ("cart", 5), ("home", 12), ("home", 4), ("cart", 14), ("home", 25), ("cart", 3), ("home", 27)]
CLICK = "page string, at long"
LATE = OutputTag("late", CLICK)


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
            yield {"page": key, "start": context.window().start, "clicks": n}


def job(env: StreamEnvironment) -> None:
    clicks = env.from_source(OneByOne([{"page": page, "at": 1000 * at} for page, at in CLICKS]), CLICK, uid="clicks")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("2 s")
    counts = (
        clicks.assign_timestamps_and_watermarks(strategy.with_timestamps("at"))
        .key_by("page")
        .window(TumblingEventTimeWindows.of("10 s"))
        .allowed_lateness(5000)
        .side_output_late_data(LATE)
        .aggregate(
            Count(),
            WithWindow(),
            accumulator_type="long",
            schema="page string, start long, clicks long",
            uid="counts",
        )
    )
    late = counts.get_side_output(LATE)
    counts.sink_to(TableSink("counts"), uid="out")
    late.sink_to(TableSink("late"), uid="late")
