"""Groups the page views of each user into sessions, which end when the user has seen nothing for half a minute."""

from engine.api import EventTimeSessionWindows, ProcessWindowFunction, StreamEnvironment, WatermarkStrategy
from engine.connectors.table import TableSink

VIEWS = [("ann", "home", 0), ("bob", "home", 5), ("ann", "cart", 50), ("ann", "help", 25), ("bob", "cart", 36)]
VIEW = "user string, page string, at long"
SESSION = "user string, start long, end long, pages string"


class Path(ProcessWindowFunction):
    def process(self, key, context, elements):
        pages = [view["page"] for view in sorted(elements, key=lambda view: view["at"])]
        window = context.window()
        yield {"user": key, "start": window.start, "end": window.end, "pages": " > ".join(pages)}


def job(env: StreamEnvironment) -> None:
    views = env.from_elements(
        [{"user": user, "page": page, "at": 1000 * at} for user, page, at in VIEWS], VIEW, "views"
    )
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("30 s")
    sessions = (
        views.assign_timestamps_and_watermarks(strategy.with_timestamps("at"))
        .key_by("user")
        .window(EventTimeSessionWindows.with_gap("30 s"))
        .process(Path(), schema=SESSION, uid="sessions")
    )
    sessions.sink_to(TableSink("sessions"), uid="out")
