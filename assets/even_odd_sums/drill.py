"""The known answer of the even and odd sums: the running sum of the sums of windows."""

from assets.drilled import drilled
from assets.even_odd_sums.source import NUMBERS
from checks.spec import AuditedTable

DRILL = drilled(
    "even_odd_sums",
    NUMBERS,
    AuditedTable(
        "sums",
        "out",
        "parity string, window_start timestamp, window_end timestamp, sum long",
        keys=("parity", "window_start"),
    ),
    answer="""
        SELECT parity, w.start AS window_start, w.end AS window_end,
               sum(sum(value)) OVER (PARTITION BY parity ORDER BY w.start) AS sum
        FROM (SELECT if(value % 2 = 0, 'even', 'odd') AS parity, value, window(ts, '10 seconds') AS w FROM {ledger})
        GROUP BY parity, w
    """,
)
