"""Counts the events of each user's session with a state of its own. A session ends after 30 seconds without events."""

from engine.api import KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor, WatermarkStrategy
from engine.connectors.table import TableSink
from tests.ports.source import OneByOne

BEGIN = 1_700_000_000
BATCHES = [
    [("ann", 0), ("bob", 5)],
    [("ann", 20)],
    [("ann", 41), ("bob", 31)],
    [("cid", 110)],
    [("cid", 130)],
    [("ann", 140), ("bob", 139)],
]


class Session(KeyedProcessFunction):
    def open(self, context):
        self.state = context.get_state(ValueStateDescriptor("session", "struct<n long, last long>"))

    def on_timer(self, timestamp, context):
        session = self.state.value()
        if session is not None and timestamp == session["last"] + 30_000:
            self.state.clear()
            yield {"user": context.get_current_key(), "n": session["n"], "end": session["last"] + 30_000}

    def process_element(self, value, context):
        session = self.state.value() or {"n": 0, "last": 0}
        last = max(session["last"], value["ms"])
        self.state.update({"n": session["n"] + 1, "last": last})
        context.timer_service().register_event_time_timer(last + 30_000)


def job(env: StreamEnvironment) -> None:
    source = OneByOne([{"user": user, "ms": 1000 * (BEGIN + at)} for batch in BATCHES for user, at in batch])
    events = env.from_source(source, "user string, ms long", uid="events")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds").with_timestamps("ms")
    sessions = (
        events.assign_timestamps_and_watermarks(strategy)
        .key_by("user")
        .process(Session(), schema="user string, n long, end long", uid="sessions")
    )
    sessions.sink_to(TableSink("sessions"), uid="out")
