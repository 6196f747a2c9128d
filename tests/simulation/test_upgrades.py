"""Jobs whose parallelism, operators and tables change between incarnations stay exact under the faults of a seed.

Topology: source → (map_batches) → map → tables "raw" and "more" (each comes and goes) and counts per key → "counts".
Faults: those of the seed; at one to four moments every process dies and another version of the job goes on, some of
them after a person went back to an older epoch, some with other columns in a table.
Checks: each table has the records of the epochs in which it had a sink, each once (a replay repeats what it reads
again), in a log that Spark can read and in files of the same columns; only a version with other columns is refused; the
counts of each key have no gap.
"""

from typing import Any

import pytest

from engine.connectors.table import TableCommitter
from engine.graph import compatibility
from engine.jobmaster.publisher import Publisher
from engine.snapshot import rewind
from tests.simulation.upgrades import run_upgrades
from tests.simulation.world import Violation

SEEDS = 120
CHUNK = 30


@pytest.mark.promise("D7", "D8", "D11")
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_a_job_that_changes_stays_exact(first: int) -> None:
    for seed in range(first, first + CHUNK):
        try:
            run_upgrades(seed)
        except Violation as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation


def test_tables_come_and_go_in_these_seeds() -> None:
    runs = [run_upgrades(seed) for seed in range(30)]
    assert any(sink.first_epoch > 1 for run in runs for sink in run.manifests[-1].description.sinks)
    assert any(
        {sink.uid for sink in run.manifests[0].description.sinks} - {s.uid for s in run.manifests[-1].description.sinks}
        for run in runs
    )
    assert any(run.refused for run in runs) and any(run.replayed for run in runs)
    assert any(manifest.rewound_to is not None for run in runs for manifest in run.manifests)


@pytest.mark.parametrize(
    ("where", "name", "bug"),
    [
        (TableCommitter, "begin", lambda self, next_epoch: None),
        (Publisher, "_gone", lambda self, manifest: {}),
        (Publisher, "_known", lambda self, manifest: self._committers),
        (compatibility, "_returned_sinks", lambda before, now, targets: ()),
        (rewind, "as_gone_back", lambda epoch_log, target: target),
    ],
    ids=[
        "a_new_table_lacks_what_Spark_needs",
        "a_gone_sink_is_forgotten",
        "a_new_sink_commits_the_epoch_before_it",
        "a_sink_returns_with_other_columns",
        "going_back_takes_the_older_sinks",
    ],
)
def test_planted_bugs_are_noticed(where: Any, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, name, bug)
    with pytest.raises(Violation):
        for seed in range(SEEDS):
            run_upgrades(seed)
