"""The known answer of the unpaid orders: orders without a payment before the end of their time."""

from assets.drilled import drilled
from assets.unpaid_orders.source import EVENTS
from checks.spec import AuditedTable

DRILL = drilled(
    "unpaid_orders",
    EVENTS,
    AuditedTable("unpaid", "out", "order_id long, ordered timestamp, due timestamp", keys=("order_id",)),
    answer="""
        SELECT order_id, ts AS ordered, ts + INTERVAL '15' MINUTE AS due
        FROM {ledger} AS ordered
        WHERE what = 'order' AND NOT EXISTS (
            SELECT 1 FROM {ledger} AS paid
            WHERE paid.order_id = ordered.order_id AND paid.what = 'pay' AND paid.ts < ordered.ts + INTERVAL '15' MINUTE
        )
    """,
)
