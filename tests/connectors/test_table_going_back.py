"""A table that is folded, rewound and taken over at random moments, each run from one seed.

Topology: one table, `Table` of test_table_folding.py, with one file per epoch and very small bounds, so that each run
folds and deletes; the retained epochs are those that a JobMaster would keep.
Faults: JobMasters are replaced, and those that were replaced fold on, commit their last epoch again, and repeat creates
of records that are deleted since; a rewind is killed at any of its writes and done again.
Checks: after each step readers (by Spark's rules) and an audit find the rows of each epoch once, and none of an epoch
that was hidden; a rewind to each retained epoch finds its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import testing
from engine.api import StreamEnvironment
from engine.connectors.table import TableCommitter, TableSink, folder, planning
from engine.connectors.table import log as table_log
from engine.connectors.table.folder import TableFolder
from engine.core.errors import StoreError, TargetTaken
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable
from engine.testing import Checkpoint, JobFailed, ListSource, Wait
from tests.connectors.test_table_folding import HOUR_MS, RETAINED, Killed, Stopping, Table, permit

SEEDS = 60
STEPS = 60


class Back:
    """One run. `kept` are the retained epochs that can be read, each with the rows of its epochs."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = Stopping()
        self.table = Table(self.store)
        self.retained: list[int] = []
        self.kept: list[tuple[int, dict[int, list[int]]]] = []
        self.old: list[tuple[TableCommitter, int, int]] = []  # of JobMasters that were replaced: with generation, epoch
        self.last: list[Committable] = []
        self.rewound: tuple[int, int] | None = None  # the newest epoch, if it is a rewind: its number, its target
        self.made: dict[str, bytes] = {}  # every record of the table
        self.done: set[str] = set()

    def step(self) -> None:
        often = (self.commits, self.tidies)
        seldom = (self.restarts, self.rewinds, self.zombie_tidies, self.repeats, self.late_create)
        self.random.choice((*often * 5, *seldom))()
        self.table.now_ms += self.random.choice((0.0, 1.0, HOUR_MS / 3, HOUR_MS))
        for path, data in self.store.files.items():
            if "/_spark_metadata/" in path:
                self.made[path] = data
        self.table.check()

    def published(self, rewound: tuple[int, int] | None = None) -> None:
        self.rewound = rewound
        self.retained = [*self.retained, self.table.epoch][-RETAINED:]
        kept = [*self.kept, (self.table.epoch, dict(self.table.due))]
        self.kept = [(epoch, due) for epoch, due in kept if epoch in self.retained]

    def commits(self) -> None:
        for _ in range(self.random.randrange(1, 5)):
            self.last = self.table.committed_next()
            self.table.epoch += 1
            self.table.committer.commit(permit(self.table.epoch), self.last)
            self.published()

    def tidies(self) -> None:
        if self.kept:
            table = self.table
            done = table.committer.tidy(table.generation, table.epoch, self.retained[0], table.now_ms)
            self.done |= {name for name in ("folded", "deleted") if getattr(done, name)}

    def restarts(self) -> None:
        self.old.append((self.table.committer, self.table.generation, self.table.epoch))
        self.table.restart()
        self.repeats()
        self.table.committer.begin(self.table.epoch + 1)
        last = permit(self.table.epoch) if self.table.epoch else None
        self.table.committer.abort_unknown(last, AttemptId(self.table.generation, 0))

    def repeats(self) -> None:
        """Commits the newest epoch again, as every start does."""
        if self.rewound is not None:
            self.table.committer.rewind(permit(self.rewound[0]), self.rewound[1])
        elif self.table.epoch:
            self.table.committer.commit(permit(self.table.epoch), self.last)

    def zombie_tidies(self) -> None:
        if self.old:
            committer, generation, epoch = self.random.choice(self.old)
            with suppress(StoreError):  # its records are gone, as its JobMaster would note
                committer.tidy(generation, epoch, max(1, epoch - RETAINED + 1), self.table.now_ms)

    def late_create(self) -> None:
        """A create of a record is applied now that had no answer when it was asked for."""
        gone = sorted(path for path in self.made if path not in self.store.files and not path.endswith(".checksum"))
        if gone:
            path = self.random.choice(gone)
            self.store.files[path] = self.made[path]
            self.done.add("late")

    def rewinds(self) -> None:
        """Goes back to a retained epoch; the command may be killed at any write, and is given again."""
        if not self.kept:
            return
        table, at = self.table, self.random.randrange(len(self.kept))
        to, due = self.kept[at]
        self.done.add(f"back {len(self.kept) - at - 1}")
        while True:
            self.old.append((table.committer, table.generation, table.epoch))
            table.restart()
            self.store.left, self.store.after = self.random.randrange(1, 12), self.random.random() < 0.5
            self.store.armed = self.random.random() < 0.5
            try:
                self.repeats()
                table.committer.prepare_rewind(to, table.generation)
                epoch = table.committer.rewind_epoch(table.epoch + 1)
                break
            except Killed:
                self.store.crash()
        self.store.armed = False
        self.kept = self.kept[: at + 1]  # those after it could not be read
        table.epoch, table.due = epoch, {n: list(values) for n, values in due.items() if n <= to}
        self.published((epoch, to))
        table.committer.rewind(permit(epoch), to)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "FAN", 2)
    monkeypatch.setattr(table_log, "COMPACT_EVERY", 3)
    monkeypatch.setattr(folder, "RECORDS_DUE", 3)


def run(seed: int) -> set[str]:
    """Lives through one run, and returns what happened in it."""
    back = Back(seed)
    for number in range(STEPS):
        try:
            back.step()
        except (AssertionError, TargetTaken) as error:
            raise AssertionError(f"seed {seed}, step {number}: {error}") from error
    return back.done


@pytest.mark.promise("C4", "G1")
@pytest.mark.parametrize("first", range(0, SEEDS, 30))
def test_a_folded_table_shows_the_rows_of_its_epochs_however_often_it_is_rewound(first: int) -> None:
    done = set[str]().union(*(run(seed) for seed in range(first, first + 30)))
    assert done == {"folded", "deleted", "late", "back 0", "back 1", "back 2"}


def _reads_its_target_again(self: TableCommitter, permit: CommitPermit, to_epoch: int) -> None:
    self._log.create(permit.epoch - 1, self._until(to_epoch))


def _born_in_the_oldest_record(self: TableFolder, records_from: int) -> dict[str, int]:
    return {name: self._born[name] for name in self._names.get(records_from, ()) if name in self._born}


BUGS: dict[str, tuple[Any, str, Callable[..., Any], str]] = {
    "a rewind reads its target again": (TableCommitter, "rewind", _reads_its_target_again, "has no records of epoch"),
    "a fold knows the epochs of its oldest record only": (
        TableFolder,
        "_born_before",
        _born_in_the_oldest_record,
        "assert",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, attribute, replacement, found = BUGS[name]
    monkeypatch.setattr(target, attribute, replacement)
    with pytest.raises(AssertionError, match=found):
        for seed in range(SEEDS):
            run(seed)


@pytest.mark.promise("D11", "G1")
def test_an_older_copy_of_a_job_s_folder_writes_over_no_published_file(tmp_path: Path) -> None:
    """The job counted its generations anew, wrote under names that were published, and readers saw rows twice."""
    items: list[Any] = [item for n in range(5) for item in ({"n": n}, Checkpoint())]

    def job(env: StreamEnvironment) -> None:
        source = ListSource([*items, Wait("1 d")])
        env.from_source(source, "n long", uid="numbers").sink_to(TableSink(str(tmp_path / "out")), uid="out")

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}

    first = testing.run(job, until=lambda run: run.epochs == 2)
    yesterday = deepcopy(first.store)
    testing.run(job, until=lambda run: run.epochs == 5, after=first)
    published = files()
    first.store = yesterday
    items[2:] = [{"n": 1}, {"n": 2}, {"n": 3}, Checkpoint()]  # checkpoints fall on other records than the last time
    with pytest.raises(JobFailed, match=r"has epochs after 2.*an older copy of the job's folder was brought back"):
        testing.run(job, until=lambda run: run.epochs == 3, after=first)
    assert files() == published
