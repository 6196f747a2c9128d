"""Joins each taxi ride with its fare, in whichever order they come. What finds no partner gets an output of its own."""

import json

from pyflink.common import Row, Types
from pyflink.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from pyflink.datastream import OutputTag, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.functions import KeyedCoProcessFunction
from pyflink.datastream.state import ValueStateDescriptor

RIDES = [(1, "airport", 0), (2, "harbour", 20), (3, "castle", 30), (5, "museum", 90)]
FARES = [(2, 1250, 25), (1, 4100, 40), (4, 800, 50), (5, 900, 95)]
RIDE = Types.ROW_NAMED(["ride", "place", "at"], [Types.LONG(), Types.STRING(), Types.LONG()])
FARE = Types.ROW_NAMED(["ride", "cents", "at"], [Types.LONG(), Types.LONG(), Types.LONG()])
PAID = Types.ROW_NAMED(["ride", "place", "cents"], [Types.LONG(), Types.STRING(), Types.LONG()])
UNMATCHED = OutputTag("unmatched", Types.ROW_NAMED(["ride", "what"], [Types.LONG(), Types.STRING()]))


class StartTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value.at


class Match(KeyedCoProcessFunction):
    def __init__(self):
        self.place = None
        self.cents = None

    def open(self, runtime_context: RuntimeContext):
        self.place = runtime_context.get_state(ValueStateDescriptor("place", Types.STRING()))
        self.cents = runtime_context.get_state(ValueStateDescriptor("cents", Types.LONG()))

    def process_element1(self, value, ctx):
        cents = self.cents.value()
        if cents is None:
            self.place.update(value.place)
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
        else:
            self.cents.clear()
            yield Row(ride=value.ride, place=value.place, cents=cents)

    def process_element2(self, value, ctx):
        place = self.place.value()
        if place is None:
            self.cents.update(value.cents)
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
        else:
            self.place.clear()
            yield Row(ride=value.ride, place=place, cents=value.cents)

    def on_timer(self, timestamp, ctx):
        for what, state in (("ride", self.place), ("fare", self.cents)):
            if state.value() is not None:
                state.clear()
                yield UNMATCHED, Row(ride=ctx.get_current_key(), what=what)


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(StartTime())
    rides = env.from_collection([Row(ride=ride, place=place, at=1000 * at) for ride, place, at in RIDES], RIDE)
    fares = env.from_collection([Row(ride=ride, cents=cents, at=1000 * at) for ride, cents, at in FARES], FARE)
    rides = rides.assign_timestamps_and_watermarks(strategy)
    fares = fares.assign_timestamps_and_watermarks(strategy)
    paid = (
        rides.key_by(lambda ride: ride.ride, key_type=Types.LONG())
        .connect(fares.key_by(lambda fare: fare.ride, key_type=Types.LONG()))
        .process(Match(), output_type=PAID)
    )
    unmatched = paid.get_side_output(UNMATCHED)
    lines = paid.map(lambda row: json.dumps({"table": "paid", **row.as_dict()}), output_type=Types.STRING()).union(
        unmatched.map(lambda row: json.dumps({"table": "unmatched", **row.as_dict()}), output_type=Types.STRING())
    )
    with lines.execute_and_collect() as results:
        print(*sorted(results), sep="\n")


if __name__ == "__main__":
    main()
