"""How the page-view job is drilled: it also writes every view with its number, so that the audit can find each one."""

from assets.pageviews.job import NUMBERED_VIEW
from assets.pageviews.source import EVENT_RATE, page_views
from checks.spec import AuditedTable, DrillSpec

RATE = 20_000

DRILL = DrillSpec(
    job="pageviews",
    path="assets.pageviews.job:job",
    params={"rate": str(RATE), "interval": "500 ms", "raw": "true"},
    records_param="rows",
    records_per_s=RATE,
    source_uid="views",
    make=lambda n: page_views(n, EVENT_RATE),
    rows=AuditedTable("views", "raw", NUMBERED_VIEW, keys=("view_id",)),
    aggregates=AuditedTable(
        "pv",
        "out",
        "app_id string, window_start timestamp, window_end timestamp, pv long, bytes long",
        keys=("app_id", "window_start"),
    ),
    recomputation="""
        SELECT app_id, w.start AS window_start, w.end AS window_end, count(*) AS pv, sum(bytes) AS bytes
        FROM (SELECT app_id, bytes, window(ts, '10 seconds') AS w FROM {ledger})
        GROUP BY app_id, w
    """,
)
