"""The known answer of the failed logins: each login beside the two logins of its user before it."""

from assets.drilled import drilled
from assets.failed_logins.source import LOGINS
from checks.spec import AuditedTable

DRILL = drilled(
    "failed_logins",
    LOGINS,
    AuditedTable("alerts", "out", "user_id long, since timestamp, until timestamp", keys=("user_id", "until")),
    answer="""
        SELECT user_id, since, until
        FROM (
            SELECT user_id, lag(ts, 2) OVER in_order AS since, ts AS until,
                   ok OR lag(ok, 1) OVER in_order OR lag(ok, 2) OVER in_order AS one_was_ok
            FROM {ledger}
            WINDOW in_order AS (PARTITION BY user_id ORDER BY ts)
        )
        WHERE NOT one_was_ok
    """,
)
