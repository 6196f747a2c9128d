"""The judge of `tests.cluster.jobs:gated`. Only the process of the gates imports it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from engine.core.gates import Found
from engine.protocol.gate import Expected

REFUSED_TS = 1_234_500
"""The time of record 12,345, in microseconds."""


class NotThatOne:
    """Refuses one record of the job."""

    def judge(self, rows: pa.Table) -> list[Found]:
        stamps = rows.column("ts").cast(pa.timestamp("us")).cast(pa.int64())
        bad = pc.indices_nonzero(pc.equal(stamps, REFUSED_TS)).to_pylist()
        return [Found(Expected("record 12,345 is not there", not bad, len(bad)), bad)]
