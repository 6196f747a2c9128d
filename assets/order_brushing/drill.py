"""The known answer of the order brushing: each click beside the two clicks of its user before it."""

from assets.drilled import drilled
from assets.order_brushing.source import CLICKS
from checks.spec import AuditedTable

DRILL = drilled(
    "order_brushing",
    CLICKS,
    AuditedTable("brushing", "out", "user_id long, login timestamp, paid timestamp", keys=("user_id", "login")),
    answer="""
        SELECT user_id, login, paid
        FROM (
            SELECT user_id, lag(ts, 2) OVER in_order AS login, ts AS paid,
                   array(lag(what, 2) OVER in_order, lag(what, 1) OVER in_order, what) AS steps
            FROM {ledger}
            WINDOW in_order AS (PARTITION BY user_id ORDER BY ts)
        )
        WHERE steps = array('login', 'order', 'pay')
    """,
)
