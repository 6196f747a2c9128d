"""A job watches a table that is folded: every row is read exactly once, or the job ends with an error.

Topology: a table that commits, folds (also what was folded), deletes and is rewound, and a job that watches it with one
to three subtasks. Everything happens in any order: each subtask sees the table, asks for its folds and reads at moments
of its own, snapshots are cut at another moment in each subtask, and restores go back to any of the last snapshots, at
another parallelism, or to the beginning.
Checks: no row is read twice; when all subtasks have read all they know of, each row that the table shows was read. A
table that deletes only what the job is done with never makes it fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from engine.connectors.files.discovery import owner
from engine.connectors.files.unfolding import Remembered, begun, inside, must_ask, pruned, restored, unfold
from engine.connectors.table.folds import folded_name, level_of

SEEDS = 1_500
STEPS = 50
KEPT_STATES = 3
KEPT_SNAPSHOTS = 2


class TooLate(Exception):
    """The job ends with an error."""


@dataclass(frozen=True)
class Part:
    """One subtask's part of a snapshot. `rows` are those that it has read, `version` is what it saw of the table."""

    taken: frozenset[str]
    waiting: tuple[str, ...]
    settled: frozenset[str]
    rows: tuple[str, ...]
    version: int


@dataclass
class Subtask:
    remembered: Remembered | None = None
    ready: bool = False
    taken: set[str] = field(default_factory=set)
    waiting: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    seen: tuple[int, list[str]] | None = None  # what the table showed; the folds are asked for later
    version: int = -1

    def part(self) -> Part:
        assert self.remembered is not None
        return Part(frozenset(self.taken), tuple(self.waiting), self.remembered.settled, tuple(self.rows), self.version)


class Watching:
    """One run: the table and the job. `patient`: the table deletes only what the job is done with."""

    def __init__(self, seed: int, patient: bool) -> None:
        self.random = Random(seed)
        self.patient = patient
        self.version = 0
        self.visible: list[str] = []
        self.shown: dict[str, int] = {}  # by file, the version of the table that first showed it, or showed it again
        self.states: list[list[str]] = [[]]  # those that a rewind can show again; the last is what readers see
        self.folds: dict[str, list[str]] = {}  # oldest first
        self.there: set[str] = set()
        self.rows: dict[str, list[str]] = {}
        self.number = 0
        self.snapshots: list[list[Part]] = []
        self.happened: Counter[str] = Counter()
        self.start(None, self.random.randint(1, 3))

    def run(self) -> None:
        table = [self.commit, self.commit, self.fold, self.fold, self.delete, self.delete]
        job = [self.see, self.look, self.look, self.read, self.read, self.barrier, self.barrier]
        for _ in range(STEPS):
            seldom = self.random.choice((self.rewind, self.restore, self.restore))
            step = self.random.choice((*table, *job, seldom))
            step()
            self.check()
        self.come_to_rest()

    # --- the table ---

    def show(self, visible: list[str]) -> None:
        self.version += 1
        self.shown |= dict.fromkeys(set(visible).difference(self.visible), self.version)
        self.visible = visible
        self.states = [*self.states, visible][-KEPT_STATES:]

    def commit(self) -> None:
        names = []
        for _ in range(self.random.randint(1, 3)):
            self.number += 1
            names.append(f"1d-0001-0001-0000-{self.number:06d}.parquet")
            self.rows[names[-1]] = [names[-1]]
        self.there |= set(names)
        self.show([*self.visible, *names])

    def fold(self) -> None:
        """Makes a fold, and mostly shows it; others are never used."""
        if len(self.visible) < 2:
            return
        first = self.random.randrange(len(self.visible) - 1)
        replaced = self.visible[first : first + self.random.randint(2, 6)]
        self.number += 1
        name = folded_name("1d", 1, max(map(level_of, replaced)) + 1, self.number, 1)
        self.rows[name] = [row for of in replaced for row in self.rows[of]]
        self.folds[name] = replaced
        self.there.add(name)
        if self.random.random() < 0.8:
            self.show([*self.visible[:first], name, *self.visible[first + len(replaced) :]])

    @property
    def needed(self) -> set[str]:
        return {name for state in self.states for name in state}

    def delete(self) -> None:
        """Deletes what the oldest folds have replaced, and mostly forgets these folds, from the oldest on."""
        waits = {name for name in self.folds if self.patient and not self.done_with(name)}
        kept = self.needed.union(*(self.folds[name] for name in waits))
        for name in list(self.folds)[: self.random.randint(1, 4)]:
            if name in waits:
                return
            gone = self.there.intersection([name, *self.folds[name]]) - kept
            self.there -= gone
            self.happened["deleted"] += bool(gone)
            if self.there.intersection(self.folds[name]) or self.random.random() < 0.2:
                return
            del self.folds[name]
            self.happened["forgotten"] += 1

    def rewind(self) -> None:
        self.show(self.random.choice(self.states))

    # --- the job ---

    def start(self, snapshot: list[Part] | None, parallelism: int) -> None:
        self.parallelism = parallelism
        self.failed = False
        self.cut: dict[int, Part] = {}
        self.first_look: tuple[int, list[str], set[str]] | None = None
        self.subtasks = [Subtask() for _ in range(parallelism)]
        if snapshot is None:
            return
        known = set[str]().union(*(part.taken for part in snapshot))
        waiting = [name for part in snapshot for name in part.waiting]
        self.subtasks[0].rows = [row for part in snapshot for row in part.rows]
        for index, subtask in enumerate(self.subtasks):
            subtask.remembered = restored(known, [part.settled for part in snapshot])
            subtask.taken = {name for name in known if self.owns(index, name)}
            subtask.waiting = [name for name in waiting if self.owns(index, name)]

    def owns(self, index: int, name: str) -> bool:
        return owner(name, self.parallelism) == index

    def one(self) -> int:
        return self.random.randrange(self.parallelism)

    def see(self) -> None:
        self.subtasks[self.one()].seen = self.version, self.visible

    def look(self) -> None:
        index = self.one()
        self.tried(lambda: self._look(index, self.subtasks[index]))

    def _look(self, index: int, subtask: Subtask) -> None:
        version, names = subtask.seen or (self.version, self.visible)
        subtask.seen = None
        if subtask.remembered is None:
            if self.first_look is None:
                if not self.there.issuperset(names):
                    return  # the real one tries again
                self.first_look = version, names, inside(names, self.folds)
            version, names, within = self.first_look
            new = [name for name in names if self.owns(index, name)]
            subtask.remembered = begun(names, within)
        else:
            folds = self.folds if must_ask(names, subtask.remembered) else {}
            found = unfold(names, folds, subtask.taken, subtask.remembered, lambda name: self.owns(index, name))
            if found.unknown is not None or not self.there.issuperset(found.read):
                raise TooLate
            new = list(found.read)
            subtask.remembered = pruned(found.remembered, names, folds) if folds else found.remembered
        subtask.ready = True
        subtask.version = version
        subtask.taken |= set(new)
        subtask.waiting += new

    def read(self) -> None:
        index, files = self.one(), self.random.randint(1, 9)
        self.tried(lambda: self._read(self.subtasks[index], files))

    def _read(self, subtask: Subtask, files: int) -> None:
        for name in subtask.waiting[:files]:
            if name not in self.there:
                raise TooLate
            subtask.rows += self.rows[name]
            subtask.waiting.remove(name)

    def barrier(self) -> None:
        """Cuts one subtask's part of the snapshot under way, or begins one."""
        index = self.one()
        if self.failed or not self.subtasks[index].ready or index in self.cut:
            return
        self.cut[index] = self.subtasks[index].part()
        if len(self.cut) == self.parallelism:
            self.snapshots = [*self.snapshots, [self.cut[at] for at in sorted(self.cut)]][-KEPT_SNAPSHOTS:]
            self.cut = {}
            self.happened["snapshots"] += 1

    def restore(self) -> None:
        """From one of the last snapshots; from the beginning if there is none."""
        self.start(self.random.choice(self.snapshots) if self.snapshots else None, self.random.randint(1, 3))

    def tried(self, step: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            step()
        except TooLate:
            assert not self.patient, "nothing was deleted that the job needs"
            self.failed = True
            self.happened["failed"] += 1

    def done_with(self, fold: str) -> bool:
        """Returns whether the job, and each snapshot that it may go back to, needs nothing of a fold any more."""
        running = [subtask.part() for subtask in self.subtasks if subtask.ready]
        under_way = [self.cut[index] if index in self.cut else running[index] for index in range(len(running))]
        if len(running) < self.parallelism or any(subtask.seen is not None for subtask in self.subtasks):
            return False
        return all(self._needs_nothing(fold, parts) for parts in (*self.snapshots, running, under_way))

    def _needs_nothing(self, fold: str, parts: list[Part]) -> bool:
        """All subtasks have looked since the folded file was shown, and none has still to read what it replaces."""
        waiting = {name for part in parts for name in part.waiting}
        looked = min(part.version for part in parts)
        return looked >= self.shown.get(fold, 0) and not waiting.intersection([fold, *self.folds[fold]])

    # --- checks ---

    def check(self) -> None:
        read = Counter(row for subtask in self.subtasks for row in subtask.rows)
        assert not read or max(read.values()) == 1, "a row is read twice"

    def come_to_rest(self) -> None:
        """Each subtask reads all that there is."""
        for index, subtask in enumerate(self.subtasks):
            for _ in range(3):  # what it saw before, the first look of the job, what there is now
                self.tried(lambda index=index, subtask=subtask: self._look(index, subtask))  # type: ignore[misc]
            self.tried(lambda subtask=subtask: self._read(subtask, len(subtask.waiting)))  # type: ignore[misc]
        self.check()
        if not self.failed:
            read = {row for subtask in self.subtasks for row in subtask.rows}
            assert read.issuperset(row for name in self.visible for row in self.rows[name]), "a row is lost"
            self.happened["all read"] += 1


@pytest.mark.promise("G1", "D7")
@pytest.mark.parametrize("patient", [False, True])
def test_each_row_of_a_folded_table_is_read_once_or_the_job_fails(patient: bool) -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        watching = Watching(seed, patient)
        try:
            watching.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        happened += watching.happened
    assert min(happened[what] for what in ("deleted", "forgotten", "snapshots", "all read")) > SEEDS / 10, happened
    assert (happened["failed"] == 0) == patient
