"""The known answer of the unique visitors: a GROUP BY with a distinct count."""

from assets.drilled import drilled
from assets.unique_visitors.source import VISITS
from checks.spec import AuditedTable

DRILL = drilled(
    "unique_visitors",
    VISITS,
    AuditedTable(
        "visitors",
        "out",
        "site string, window_start timestamp, window_end timestamp, visitors long, visits long",
        keys=("site", "window_start"),
    ),
    answer="""
        SELECT site, w.start AS window_start, w.end AS window_end,
               count(DISTINCT user_id) AS visitors, count(*) AS visits
        FROM (SELECT site, user_id, window(ts, '1 hour') AS w FROM {ledger})
        GROUP BY site, w
    """,
)
