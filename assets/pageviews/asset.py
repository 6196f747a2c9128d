"""The page-view job in Dagster: how it is started, who owns it, when it is checkpointed and drilled."""

from assets.pageviews.drill import DRILL
from orchestration.spec import GoldSpec, StreamSpec

PAGEVIEWS = StreamSpec(
    job="pageviews",
    path="assets.pageviews.job:job",
    description="Page views and bytes per app, every ten seconds of event time.",
    owners=("team:web-analytics",),
    # A low rate and large batches leave room for a drill and a Spark batch beside the job, on a small machine.
    params={"rate": "20000", "buffer_ms": "200", "interval": "10 s"},
    parallelism=2,
    checkpoint_cron="0 * * * *",
    watch_every_s=5,
    drill=DRILL,
    drill_cron="30 3 * * *",
    gold=GoldSpec(
        table="pv",
        sql="""
SELECT app_id, sum(pv) AS pv, sum(bytes) AS bytes, round(sum(bytes) / sum(pv), 1) AS bytes_per_view,
       min(window_start) AS first_window, max(window_end) AS last_window
FROM {table}
GROUP BY app_id
""",
    ),
)
