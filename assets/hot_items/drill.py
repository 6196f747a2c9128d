"""The known answer of the hot items: counts of sliding windows, ranked. Of equal counts, the greatest item is first."""

from assets.drilled import drilled
from assets.hot_items.source import VIEWS
from checks.spec import AuditedTable

DRILL = drilled(
    "hot_items",
    VIEWS,
    AuditedTable("hottest", "out", "hour_end timestamp, rank long, item long, views long", keys=("hour_end", "rank")),
    answer="""
        SELECT hour_end, rank, item, views
        FROM (
            SELECT w.end AS hour_end, item, count(*) AS views,
                   cast(row_number() OVER (PARTITION BY w ORDER BY count(*) DESC, item DESC) AS long) AS rank
            FROM (SELECT item, window(ts, '1 hour', '5 minutes') AS w FROM {ledger})
            GROUP BY w, item
        )
        WHERE rank <= 3
    """,
)
