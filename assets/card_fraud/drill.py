"""The known answer of the card fraud: each payment beside the one before it with the same card."""

from assets.card_fraud.source import PAYMENTS
from assets.drilled import drilled
from checks.spec import AuditedTable

DRILL = drilled(
    "card_fraud",
    PAYMENTS,
    AuditedTable("frauds", "out", "card long, tried long, taken long, ts timestamp", keys=("card", "ts")),
    answer="""
        SELECT card, before AS tried, cents AS taken, ts
        FROM (SELECT card, cents, ts, lag(cents) OVER (PARTITION BY card ORDER BY ts) AS before FROM {ledger})
        WHERE before < 100 AND cents > 50000
    """,
)
