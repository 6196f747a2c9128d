"""300 simulated runs in which a person rewinds, replays and forks a job, each from one seed.

Topology: the jobs of test_simulation.py; a fork is a second job with a JobMaster and slots of its own.
Faults: all of those, damaged snapshots, JobMasters that sleep or run on until they are fenced, commands that die
between any two calls of the store and are given again.
Checks: everything in tests/simulation/invariants.py and tests/simulation/going_back.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.connectors.table import TableCommitter
from engine.connectors.table.folder import TableFolder
from engine.connectors.table.log import line_name
from engine.core.paths import JobPaths
from engine.snapshot import rewind
from tests.simulation.going_back import Run, _plan, run_back
from tests.simulation.tables import small_bounds

SEEDS = 300
CHUNK = 100


@pytest.mark.promise("D11", "F2", "G1")
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_tables_are_exact_however_often_a_person_goes_back(first: int) -> None:
    hits: set[str] = set()
    for seed in range(first, first + CHUNK):
        result = run_back(seed)
        assert result.violation is None, f"seed {seed}: {result.violation}"
        hits |= result.hits
    for way in ("rewind to an older epoch", "rewind to the newest epoch", "replay to the newest epoch", "fork"):
        assert f"went back: {way}" in hits
    assert {"command: dies", "table: readers see a folded file", "table: an old record is deleted"} <= hits


def test_the_checker_knows_an_old_record_that_a_late_create_makes_again() -> None:
    """It was taken for an epoch without a manifest, of which readers see no rows."""
    run = Run(next(seed for seed in range(SEEDS) if _plan(seed).spec.rows > 100))
    with small_bounds():
        run.live()
    run.world.close()
    gone = [path for path in run.checker._forgotten if "/_spark_metadata/" in path and not path.endswith(".checksum")]
    assert gone
    for path in gone:
        run.store.durable[path] = b"v1"
        run.checker._created(path, b"v1")


def _nothing(*_: Any, **__: Any) -> None: ...


def _shows_all(self: TableCommitter, permit: Any, to_epoch: int) -> None:
    newest = max(to_epoch, *(n for n in range(permit.epoch) if _has(self, n)))
    self._log.create(permit.epoch - 1, self._log.below(newest))


def _has(committer: TableCommitter, epoch: int) -> bool:
    return f"{committer._log.record(epoch - 1)}" in committer._store.list(f"{committer._table}/_spark_metadata")


def _of_first_generation(self: JobPaths, generation: int, checkpoint: int, owner: str) -> str:
    return f"{self.checkpoint(1, checkpoint)}/0"


def _names_folded_files(self: TableCommitter, permit: Any, to_epoch: int) -> None:
    """A fold spans the rewind's target: the file that it made is named for a part of those that it replaced."""
    entries, folds = self._until(to_epoch), self._folds.kept().values()
    for folded in (folded for fold in folds for folded in fold.folded):
        if any(line_name(line) in folded.replaces for line in entries.lines):
            kept = [line for line in entries.lines if line_name(line) not in folded.replaces]
            entries = replace(entries, lines=[*kept, self._log.line(f"{self._table}/{folded.file}", folded.size)])
    self._log.create(permit.epoch - 1, entries, self._folds.canonical)


def _begins_impatient(self: TableFolder, *rest: Any) -> None:
    _BEGIN(self, *rest)
    self._keep_ms = 0.0


_BEGIN = TableFolder.__init__

BUGS: dict[str, tuple[Any, str, Callable[..., Any], tuple[str, ...]]] = {
    "the newest epoch is not committed first": (rewind, "_commit_newest", _nothing, ("commit", "dense")),
    "a rewind hides nothing": (TableCommitter, "rewind", _shows_all, ("commit",)),
    "copies lie in the first generation": (JobPaths, "copy", _of_first_generation, ("one_owner", "durable")),
}
FOLD_BUGS: dict[str, tuple[Any, str, Callable[..., Any], tuple[str, ...]]] = {
    "a fold spans the rewind's target": (TableCommitter, "rewind", _names_folded_files, ("commit",)),
    "old files go before the readers' delay": (TableFolder, "__init__", _begins_impatient, ("reader", "retained")),
}


@pytest.mark.parametrize("name", [*BUGS, *FOLD_BUGS])
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, attribute, replacement, invariants = {**BUGS, **FOLD_BUGS}[name]
    seeds = [seed for seed in range(SEEDS) if name in BUGS or _plan(seed).spec.rows > 100]
    monkeypatch.setattr(target, attribute, replacement)
    violations = (run_back(seed).violation for seed in seeds)
    first = next((violation for violation in violations if violation is not None), None)
    assert first is not None and first.invariant in invariants, first
