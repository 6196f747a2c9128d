"""The page-view job in Dagster: how it is started, who owns it, when it is saved, rescaled and drilled."""

from assets.pageviews.drill import DRILL
from engine.protocol.autoscale import Bounds
from orchestration.spec import GoldSpec, RescaleAt, StreamSpec

STREAM = StreamSpec(
    job="pageviews",
    path="assets.pageviews.job:job",
    description="Page views and bytes per app, every ten seconds of event time.",
    owners=("team:web-analytics",),
    # A low rate and large batches leave room for a drill and a Spark batch beside the job, on a small machine.
    params={"rate": "20000", "buffer_ms": "200", "interval": "10 s"},
    parallelism=2,
    checkpoint_cron="0 * * * *",
    savepoint_cron="0 2 * * *",
    savepoints_kept=7,
    rescale=(RescaleAt("morning", "0 7 * * *", 3), RescaleAt("evening", "0 20 * * *", 2)),
    autoscale=Bounds(least=1, most=4),
    watch_every_s=5,
    on_first_start=True,
    drill=DRILL,
    drill_cron="30 3 * * 0",
    audit_cron="15 * * * *",
    gold=GoldSpec(
        table="pv",
        event_time="window_start",
        sql="""
SELECT app_id, sum(pv) AS pv, sum(bytes) AS bytes, round(sum(bytes) / sum(pv), 1) AS bytes_per_view,
       min(window_start) AS first_window, max(window_end) AS last_window
FROM {table}
GROUP BY app_id
""",
    ),
)
