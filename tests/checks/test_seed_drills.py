"""Goal: jobs of the seeds lose and double nothing on real Spark when a worker is killed, one of each lane.

Topology: the hot items (two windows behind each other, columnar) and the failed logins (a pattern, record by record),
two slots each; a reader in a Spark application of its own. Faults: SIGKILL of a slot; the seed decides which one and
when. Checks: the drill's figures, and the audit by Great Expectations, which compares with the batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checks.audit import run_audit
from checks.drill import run_drill
from checks.results import Verdict
from checks.spec import load_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.promise("A11", "B5", "H2", "H3")
@pytest.mark.parametrize("job", ["hot_items", "failed_logins"])
def test_a_job_of_the_seeds_passes_its_drill_and_its_audit(job: str, tmp_path: Path, spark: SparkSession) -> None:
    spec = load_spec(job)
    drilled = run_drill(spec, tmp_path, seed=11, progress=print)
    assert drilled.names == ["slot-killed"] and drilled.restarts == 1 and drilled.verdict is Verdict.PASSED, drilled
    audit = run_audit(spec, drilled.store, spark=spark, progress=print)
    assert audit.verdict is Verdict.PASSED, audit
    assert audit.figures["rows"] == audit.figures["records"] == drilled.records
    assert audit.figures["aggregates"] > 1000 and audit.figures["aggregates_lost"] == 0
