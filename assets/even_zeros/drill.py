"""The known answer of the even zeros: the zeros of each text whose last digit has come, counted."""

from assets.drilled import drilled
from assets.even_zeros.source import TEXTS
from checks.spec import AuditedTable

DRILL = drilled(
    "even_zeros",
    TEXTS,
    AuditedTable("texts", "out", "text_id long, even boolean", keys=("text_id",)),
    answer="""
        SELECT text_id, count_if(digit = '0') % 2 = 0 AS even
        FROM {ledger}
        GROUP BY text_id
        HAVING any(last)
    """,
)
