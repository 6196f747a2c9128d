"""Joins each taxi ride with its fare, in whichever order they come. What finds no partner gets an output of its own."""

from engine.api import (
    KeyedCoProcessFunction,
    OutputTag,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from engine.connectors.table import TableSink

RIDES = [(1, "airport", 0), (2, "harbour", 20), (3, "castle", 30), (5, "museum", 90)]
FARES = [(2, 1250, 25), (1, 4100, 40), (4, 800, 50), (5, 900, 95)]
RIDE = "ride long, place string, at long"
FARE = "ride long, cents long, at long"
PAID = "ride long, place string, cents long"
UNMATCHED = OutputTag("unmatched", "ride long, what string")


class Match(KeyedCoProcessFunction):
    def __init__(self):
        self.place = None
        self.cents = None

    def open(self, runtime_context: RuntimeContext):
        self.place = runtime_context.get_state(ValueStateDescriptor("place", "string"))
        self.cents = runtime_context.get_state(ValueStateDescriptor("cents", "long"))

    def process_element1(self, value, ctx):
        cents = self.cents.value()
        if cents is None:
            self.place.update(value["place"])
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
        else:
            self.cents.clear()
            yield {"ride": value["ride"], "place": value["place"], "cents": cents}

    def process_element2(self, value, ctx):
        place = self.place.value()
        if place is None:
            self.cents.update(value["cents"])
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
        else:
            self.place.clear()
            yield {"ride": value["ride"], "place": place, "cents": value["cents"]}

    def on_timer(self, timestamp, ctx):
        for what, state in (("ride", self.place), ("fare", self.cents)):
            if state.value() is not None:
                state.clear()
                yield UNMATCHED, {"ride": ctx.get_current_key(), "what": what}


def job(env: StreamEnvironment) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
    started = [{"ride": ride, "place": place, "at": 1000 * at} for ride, place, at in RIDES]
    charged = [{"ride": ride, "cents": cents, "at": 1000 * at} for ride, cents, at in FARES]
    rides = env.from_elements(started, RIDE, uid="rides")
    fares = env.from_elements(charged, FARE, uid="fares")
    rides = rides.assign_timestamps_and_watermarks(strategy)
    fares = fares.assign_timestamps_and_watermarks(strategy)
    paid = rides.key_by("ride").connect(fares.key_by("ride")).process(Match(), schema=PAID, uid="paid")
    unmatched = paid.get_side_output(UNMATCHED)
    paid.sink_to(TableSink("paid"), uid="out")
    unmatched.sink_to(TableSink("unmatched"), uid="unmatched")
