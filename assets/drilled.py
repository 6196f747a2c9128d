"""`drilled` makes the `DrillSpec` of a job of generated records: what its drill runs, and what its audit compares."""

from __future__ import annotations

from assets.generated import SEED, Generated
from checks.spec import AuditedTable, DrillSpec

RATE = 20_000


def drilled(job: str, records: Generated, results: AuditedTable, answer: str, rate: int = RATE) -> DrillSpec:
    """`answer` is Spark SQL over the records, `{ledger}`, that gives the rows of `results`: the known answer."""
    return DrillSpec(
        job=job,
        path=f"assets.{job}.job:job",
        params={"rate": str(rate), "interval": "500 ms", "seed": str(SEED), "raw": "true"},
        records_param="rows",
        records_per_s=rate,
        source_uid=records.uid,
        make=records.columns,
        rows=AuditedTable(records.uid, "raw", records.schema, keys=("event_id",)),
        aggregates=results,
        recomputation=answer,
    )
