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
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.connectors.files.discovery import owner
from engine.connectors.files.unfolding import Remembered, begun, inside, must_ask, pruned, restored, unfold
from engine.connectors.table.folds import folded_name, level_of

KEPT_STATES = 3
KEPT_SNAPSHOTS = 3
ANY = st.integers(min_value=0, max_value=1_000)


class TooLate(Exception):
    """The job ends with an error."""


@dataclass(frozen=True)
class Part:
    """One subtask's part of a snapshot. `rows` are those that it has read in all."""

    taken: frozenset[str]
    waiting: tuple[str, ...]
    settled: frozenset[str]
    rows: tuple[str, ...]


@dataclass
class Subtask:
    remembered: Remembered | None = None
    ready: bool = False
    taken: set[str] = field(default_factory=set)
    waiting: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    seen: list[str] | None = None  # what the table showed; the folds are asked for later

    def part(self) -> Part:
        assert self.remembered is not None
        return Part(frozenset(self.taken), tuple(self.waiting), self.remembered.settled, tuple(self.rows))


class Watching(RuleBasedStateMachine):
    """The table and the job."""

    patient = False

    @initialize(parallelism=st.integers(1, 3))
    def begin(self, parallelism: int) -> None:
        self.visible: list[str] = []
        self.states: list[list[str]] = [[]]  # those that a rewind can show again; the last is what readers see
        self.folds: dict[str, list[str]] = {}
        self.there: set[str] = set()
        self.rows: dict[str, list[str]] = {}
        self.hidden = False  # a fold that is made, and not yet shown
        self.number = 0
        self.snapshots: list[list[Part]] = []
        self.start(None, parallelism)

    # --- the table ---

    def show(self, visible: list[str]) -> None:
        self.visible = visible
        self.states = [*self.states, visible][-KEPT_STATES:]

    @rule(files=st.integers(1, 3))
    def commit(self, files: int) -> None:
        names = []
        for _ in range(files):
            self.number += 1
            names.append(f"1d-0001-0001-0000-{self.number:06d}.parquet")
            self.rows[names[-1]] = [names[-1]]
        self.there |= set(names)
        self.show([*self.visible, *names])

    @precondition(lambda self: len(self.visible) > 1)
    @rule(first=ANY, size=st.integers(2, 4), shown=st.booleans())
    def fold(self, first: int, size: int, shown: bool) -> None:
        first %= len(self.visible) - 1
        replaced = self.visible[first : first + size]
        self.number += 1
        name = folded_name("1d", 1, max(map(level_of, replaced)) + 1, self.number, 1)
        self.rows[name] = [row for of in replaced for row in self.rows[of]]
        self.folds[name] = replaced
        self.there.add(name)
        if shown:
            self.show([*self.visible[:first], name, *self.visible[first + size :]])

    @property
    def needed(self) -> set[str]:
        return {name for state in self.states for name in state}

    @rule(folds=st.integers(1, 3))
    def delete(self, folds: int) -> None:
        """Deletes the replaced files of the oldest folds, after their time, and forgets these folds from the oldest."""
        for name in list(self.folds)[:folds]:
            if self.patient and not self.done_with(name):
                return
            gone = {name, *self.folds[name]} - self.needed
            if name not in self.needed and any(name in replaced for replaced in self.folds.values()):
                gone.discard(name)
            self.there -= gone
            if self.there.intersection(self.folds[name]):
                return

    @rule()
    def forget(self) -> None:
        for name in list(self.folds):
            if self.there.intersection(self.folds[name]) or (self.patient and not self.done_with(name)):
                return
            del self.folds[name]

    @precondition(lambda self: len(self.states) > 1)
    @rule(back=ANY)
    def rewind(self, back: int) -> None:
        self.show(self.states[back % len(self.states)])

    # --- the job ---

    def start(self, snapshot: list[Part] | None, parallelism: int) -> None:
        self.parallelism = parallelism
        self.failed = False
        self.cut: dict[int, Part] = {}
        self.first_look: tuple[list[str], set[str]] | None = None
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

    @precondition(lambda self: not self.failed)
    @rule(index=ANY)
    def see(self, index: int) -> None:
        self.subtasks[index % self.parallelism].seen = self.visible

    @precondition(lambda self: not self.failed)
    @rule(index=ANY)
    def look(self, index: int) -> None:
        index %= self.parallelism
        self.tried(lambda: self._look(index, self.subtasks[index]))

    def _look(self, index: int, subtask: Subtask) -> None:
        names, subtask.seen = self.visible if subtask.seen is None else subtask.seen, None
        if subtask.remembered is None:
            if self.first_look is None:
                if not self.there.issuperset(names):
                    return  # the real one tries again
                self.first_look = names, inside(names, self.folds)
            names, within = self.first_look
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
        subtask.taken |= set(new)
        subtask.waiting += new

    @precondition(lambda self: not self.failed)
    @rule(index=ANY, files=st.integers(1, 5))
    def read(self, index: int, files: int) -> None:
        subtask = self.subtasks[index % self.parallelism]
        self.tried(lambda: self._read(subtask, files))

    def _read(self, subtask: Subtask, files: int) -> None:
        for name in subtask.waiting[:files]:
            if name not in self.there:
                raise TooLate
            subtask.rows += self.rows[name]
            subtask.waiting.remove(name)

    @precondition(lambda self: not self.failed)
    @rule(index=ANY)
    def barrier(self, index: int) -> None:
        """Cuts one subtask's part of the snapshot under way, or begins one."""
        index %= self.parallelism
        if not self.subtasks[index].ready or index in self.cut:
            return
        self.cut[index] = self.subtasks[index].part()
        if len(self.cut) == self.parallelism:
            self.snapshots = [*self.snapshots, [self.cut[at] for at in sorted(self.cut)]][-KEPT_SNAPSHOTS:]
            self.cut = {}

    @rule(back=ANY, parallelism=st.integers(1, 3))
    def restore(self, back: int, parallelism: int) -> None:
        """From one of the last snapshots; from the beginning if there is none."""
        self.start(self.snapshots[back % len(self.snapshots)] if self.snapshots else None, parallelism)

    def tried(self, step: Any) -> None:
        try:
            step()
        except TooLate:
            assert not self.patient, "nothing was deleted that the job needs"
            self.failed = True

    def done_with(self, fold: str) -> bool:
        """Returns whether the job, and each snapshot that it may go back to, needs nothing of a fold any more."""
        running = [subtask.part() for subtask in self.subtasks if subtask.ready]
        under_way = [self.cut[index] if index in self.cut else running[index] for index in range(len(running))]
        if len(running) < self.parallelism or any(subtask.seen is not None for subtask in self.subtasks):
            return False
        return all(self._needs_nothing(fold, parts) for parts in (*self.snapshots, running, under_way))

    def _needs_nothing(self, fold: str, parts: list[Part]) -> bool:
        known = set[str]().union(*(part.taken for part in parts))
        remembered = restored(known, [part.settled for part in parts])
        found = unfold([fold], {}, (), remembered, lambda _: True)
        waiting = {name for part in parts for name in part.waiting}
        return found.unknown is None and not waiting.intersection([fold, *self.folds[fold]])

    # --- checks ---

    @invariant()
    def no_row_is_read_twice(self) -> None:
        read = Counter(row for subtask in self.subtasks for row in subtask.rows)
        assert not read or max(read.values()) == 1, read

    def teardown(self) -> None:
        if not hasattr(self, "subtasks"):
            return
        for index, subtask in enumerate(self.subtasks):
            for _ in range(3):  # what it saw before, the first look of the job, what there is now
                if not self.failed:
                    self.look(index)
            if not self.failed:
                self.read(index, len(subtask.waiting))
        self.no_row_is_read_twice()
        if not self.failed:
            read = {row for subtask in self.subtasks for row in subtask.rows}
            assert read.issuperset(row for name in self.visible for row in self.rows[name])


class WatchingAPatientTable(Watching):
    """The table deletes only what the job is done with, as it does if the job is never behind for `keep_replaced`."""

    patient = True


BOUNDS = settings(max_examples=200, stateful_step_count=40, deadline=None, derandomize=True)
TestAnyTable = pytest.mark.promise("G1", "D7")(Watching.TestCase)
TestAnyTable.settings = BOUNDS
TestAPatientTable = pytest.mark.promise("G1", "D7")(WatchingAPatientTable.TestCase)
TestAPatientTable.settings = BOUNDS
