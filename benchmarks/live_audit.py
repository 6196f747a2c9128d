"""What an audit of a live table costs in CPU time: per million new rows, per million rows that are read again, per run.

`python -m benchmarks.live_audit [MILLIONS]`: a job in this process publishes page views (five columns, 7 MB per million
rows), one million per epoch in two files, as a job with a million rows a second and a checkpoint a second does. CPU
times of one process, because other work on the machine must not count. The last figure is a whole `weir audit --live`
of a table without new rows, with Great Expectations, as a process of its own; the JVM of its Spark is not counted.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from assets.pageviews.drill import DRILL
from checks.ledger import expected_records
from engine.connectors.table import TableSink
from tests.checks.live import JOB, LiveJob

PER_EPOCH = 1_000_000


class _PageViews(LiveJob):
    """The job, with the rows of the page views."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.schema = DRILL.rows.arrow_schema
        self.use("pv")
        self.sink = TableSink("pv")
        self.restart()

    def batch(self, rows: int) -> pa.RecordBatch:
        self.rows += rows
        made = expected_records(DRILL, self.rows - rows, self.rows).combine_chunks()
        return made.to_batches()[0] if rows else pa.RecordBatch.from_pylist([], schema=self.schema)


def main() -> None:
    millions = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WEIR_STATE"] = f"{folder}/state"
        job = _PageViews(Path(folder) / "store")
        job.run(millions, rows=PER_EPOCH, tidy=False)
        _show("new rows", millions, _cpu_s(job))
        for _ in range(20):  # one more round of folding needs a compact record
            job.run(1, rows=0)
        _show("rows that were folded since", millions, _cpu_s(job))
        _show("rows of files that are read again", millions, _cpu_s(job, full=True))
        share = _cpu_s(job)
        print(f"a run without new rows, which reads a share of the files again: {1000 * share:.0f} ms")
        launch = job.folder / JOB / "run" / "launch.json"
        launch.parent.mkdir(parents=True, exist_ok=True)
        launch.write_text("{}")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "weir", "audit", JOB, "--live", "--store", str(job.folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"a whole `weir audit --live` with Great Expectations, without the JVM of Spark: {whole:.1f} CPU s")


def _cpu_s(job: LiveJob, **options: bool) -> float:
    began = time.process_time()
    wrong = job.audit(**options)
    took = time.process_time() - began
    assert wrong == [], wrong
    return took


def _show(what: str, millions: int, took_s: float) -> None:
    print(f"{what}: {1000 * took_s / millions:.1f} ms of CPU per million ({millions} million in {took_s:.2f} CPU s)")


if __name__ == "__main__":
    main()
