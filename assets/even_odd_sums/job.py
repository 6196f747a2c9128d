"""The sums of all even and of all odd numbers so far, every ten seconds of event time.

A running sum shows the order in which records came, which differs from run to run. So the sums of ten seconds are
computed first: the windows of a key end in the order of time, and the running sum of their results is always the same.
"""

import polars as pl

from assets.even_odd_sums.source import NUMBERS
from engine.api import StreamEnvironment, TumblingEventTimeWindows, total
from engine.connectors.table import TableSink

PARITY = pl.when(pl.col("value") % 2 == 0).then(pl.lit("even")).otherwise(pl.lit("odd"))


def job(env: StreamEnvironment) -> None:
    numbers = NUMBERS.read(env).select("value", parity=PARITY)
    windows = numbers.key_by("parity").window(TumblingEventTimeWindows.of("10 s"))
    sums = windows.aggregate(sum=total("value"), uid="sums").key_by("parity").sum("sum", uid="so far")
    sums.sink_to(TableSink("sums"), uid="out")
