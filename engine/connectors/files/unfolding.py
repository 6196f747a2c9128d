"""Decides what a subtask that watches a folded Weir table reads. Pure: `discovery.py` looks, reads and remembers.

The rows of a file that a writer made (level 0) come back in a folded file, and later in a folded file of folded ones.
The table's folds tell which files a folded one replaces, until these are deleted. As long as they do, rows are read
under the name that their writer gave them, by the subtask that owns that name. At the first look of a job older folds
are gone, so that look takes folded files `whole`. It counts for all subtasks, at whatever moment each of them begins.

Invariants: no row is read under two names, because nobody looks into a file of `whole`, and all other rows are read
under the names of their writers. A folded file is `settled` for a subtask once this knows which parts are its own, and
has taken them. Snapshots hold that for each subtask: a file is settled after a restore only if it was for all of them.
A folded file that is neither settled nor told by a fold may hold rows that nobody has read: that is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.connectors.table.folds import level_of

Folds = Mapping[str, Sequence[str]]
"""By folded file, the files that it replaces, as far as the table still tells."""


@dataclass(frozen=True)
class Remembered:
    """What a subtask knows about the files of a table, besides those that it has taken.

    `whole`: folded files that are read under their own names, whoever reads them. `settled`: files that need nothing of
    this subtask any more.
    """

    whole: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Unfolded:
    """What a look at a table means: the files to read and the new memory, or the folded file that no fold tells of."""

    read: tuple[str, ...]
    remembered: Remembered
    unknown: str | None = None


def begun(first_look: Iterable[str], inside: Iterable[str]) -> Remembered:
    """Returns what a subtask knows after the first look of its job. `inside`: what the folded files in it replace."""
    return Remembered(frozenset(filter(level_of, first_look)), frozenset(inside))


def restored(known: Iterable[str], settled: Sequence[Iterable[str] | None]) -> Remembered:
    """Returns what a restored subtask knows.

    `known`: the files that any subtask of the snapshot has read, or reads. `settled`: what each of these subtasks had
    settled; None if it had not looked at a table.
    """
    each = [frozenset(of or ()) for of in settled]
    return Remembered(frozenset(filter(level_of, known)), each[0].intersection(*each[1:]) if each else frozenset())


def inside(visible: Iterable[str], folds: Folds) -> set[str]:
    """Returns all files that these replace, and that those replace. A rewind of the table may show them again."""
    found: set[str] = set()
    left = list(visible)
    while left:
        replaced = set(folds.get(left.pop(), ())) - found
        found |= replaced
        left += replaced
    return found


def must_ask(visible: Iterable[str], remembered: Remembered) -> bool:
    """Returns whether the folds are needed to tell what these files are."""
    return any(level_of(name) and not _done(name, remembered) for name in visible)


def unfold(
    visible: Sequence[str],
    folds: Folds,
    taken: Collection[str],
    remembered: Remembered,
    mine: Callable[[str], bool],
) -> Unfolded:
    """Decides what a subtask reads of the files that a table shows.

    `taken`: the files that this subtask has taken. `mine` tells whether a file is this subtask's.
    """
    read: list[str] = []
    settled: set[str] = set()
    left = list(reversed(visible))
    while left:
        name = left.pop()
        if _done(name, remembered):
            continue
        if level_of(name):
            if name not in folds:
                return Unfolded((), remembered, unknown=name)
            settled.add(name)
            left += reversed(folds[name])
        elif mine(name) and name not in taken:
            read.append(name)
    return Unfolded(tuple(read), Remembered(remembered.whole, remembered.settled | settled))


def pruned(remembered: Remembered, visible: Iterable[str], folds: Folds) -> Remembered:
    """Forgets settled files that the table does not show, and that no fold names: they don't come back.

    A rewind of the table may show a replaced file again as long as its fold is there.
    """
    named = {*visible, *folds, *(name for replaced in folds.values() for name in replaced)}
    return Remembered(remembered.whole, remembered.settled & named)


def _done(name: str, remembered: Remembered) -> bool:
    return name in remembered.whole or name in remembered.settled
