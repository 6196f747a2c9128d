"""Groups the page views of each user into sessions, which end when the user has seen nothing for half a minute."""

import json

from pyflink.common import Duration, Row, Time, Types
from pyflink.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.functions import ProcessWindowFunction
from pyflink.datastream.window import EventTimeSessionWindows

VIEWS = [("ann", "home", 0), ("bob", "home", 5), ("ann", "cart", 50), ("ann", "help", 25), ("bob", "cart", 36)]
VIEW = Types.ROW_NAMED(["user", "page", "at"], [Types.STRING(), Types.STRING(), Types.LONG()])
SESSION = Types.ROW_NAMED(
    ["user", "start", "end", "pages"], [Types.STRING(), Types.LONG(), Types.LONG(), Types.STRING()]
)


class ViewTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value.at


class Path(ProcessWindowFunction):
    def process(self, key, context, elements):
        pages = [view.page for view in sorted(elements, key=lambda view: view.at)]
        window = context.window()
        yield Row(user=key, start=window.start, end=window.end, pages=" > ".join(pages))


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    views = env.from_collection([Row(user=user, page=page, at=1000 * at) for user, page, at in VIEWS], VIEW)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(30))
    sessions = (
        views.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(ViewTime()))
        .key_by(lambda view: view.user, key_type=Types.STRING())
        .window(EventTimeSessionWindows.with_gap(Time.seconds(30)))
        .process(Path(), output_type=SESSION)
    )
    with sessions.execute_and_collect() as results:
        print(*sorted(json.dumps({"table": "sessions", **row.as_dict()}) for row in results), sep="\n")


if __name__ == "__main__":
    main()
