"""Names wrong rows where their digests tell them.

A digest is a sum of the rows' hashes, so it can't be turned back into rows. But the difference between what an epoch
must have and what it has is the hash of a row that is there twice; and two epochs whose rows were swapped differ by the
hashes of two rows that are both still there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa

from checks.live.spans import Layout, opened, row_hashes
from engine.state.key_hash import Hashes

MOST_ROWS = 5_000_000
"""So many rows of wrong epochs are looked through."""
TEXT_LENGTH = 300

Difference = tuple[int, int]
"""How many rows an epoch has too many (negative: too few), and by what its digest differs."""


@dataclass(frozen=True)
class Suspect:
    """A file with rows of a wrong epoch."""

    name: str
    read: Callable[[], bytes]
    layout: Layout


@dataclass(frozen=True)
class _Rows:
    """The rows of an epoch in one file: from row `first` on."""

    file: Suspect
    first: int
    hashes: Hashes


def named_rows(differences: Mapping[int, Difference], suspects: Iterable[Suspect]) -> dict[int, str]:
    """Returns what can be said of the rows of wrong epochs, by epoch."""
    if not differences:
        return {}
    rows = _rows_of(differences, suspects)
    named: dict[int, str] = {}
    for (one, (more, by)), (other, (less, back)) in combinations(differences.items(), 2):
        if more + less or (by + back) % (1 << 64) or one in named or other in named:
            continue
        if more == 0 and (pair := _swapped(rows.get(one, []), rows.get(other, []), by)):
            named[one] = f"swapped: {pair[0]} is of epoch {other}"
            named[other] = f"swapped: {pair[1]} is of epoch {one}"
        elif abs(more) == 1:
            to, of, hashed = (one, other, by) if more == 1 else (other, one, back)
            if found := _with_hash(rows.get(to, []), hashed):
                named[to], named[of] = f"1 too many: {found} is of epoch {of}", f"1 lost: {found} is in epoch {to}"
    named = {epoch: _surplus(rows.get(epoch, []), *of) for epoch, of in differences.items()} | named
    return {epoch: text for epoch, text in named.items() if text}


def _rows_of(differences: Mapping[int, Difference], suspects: Iterable[Suspect]) -> dict[int, list[_Rows]]:
    found: dict[int, list[_Rows]] = {}
    looked = 0
    for suspect in suspects:
        try:
            file = opened(suspect.read())
            looked += file.metadata.num_rows
            if looked > MOST_ROWS:
                break
            hashes = np.concatenate([np.zeros(0, np.uint64), *row_hashes(file)])
        except (pa.ArrowException, OSError, TypeError):
            continue
        at = 0
        for epoch, count in suspect.layout:
            behind = len(hashes) if count is None else at + count
            if epoch in differences:
                found.setdefault(epoch, []).append(_Rows(suspect, at, hashes[at:behind]))
            at = behind
    return found


def _surplus(rows: list[_Rows], more: int, by: int) -> str:
    """Names the row that should not be there, or not so often."""
    if more < 1:
        return ""
    copies = [one for one in rows if len(one.hashes)]
    if not copies:
        return ""
    values, counts = np.unique(np.concatenate([one.hashes for one in copies]), return_counts=True)
    with np.errstate(over="ignore"):
        fits = values[(counts >= more) & (values * np.uint64(more) == np.uint64(by))]
    return f"{more} too many: {_with_hash(rows, int(fits[0]))}" if len(fits) else ""


def _swapped(rows: list[_Rows], others: list[_Rows], by: int) -> tuple[str, str] | None:
    mine, theirs = (np.concatenate([np.zeros(0, np.uint64), *(o.hashes for o in of)]) for of in (rows, others))
    with np.errstate(over="ignore"):
        partners = mine - np.uint64(by)
    places = np.flatnonzero(np.isin(partners, theirs))
    if not len(places):
        return None
    place = int(places[0])
    return _with_hash(rows, int(mine[place])), _with_hash(others, int(partners[place]))


def _with_hash(rows: list[_Rows], hashed: int) -> str:
    """Returns the row of this hash with its place; empty if there is none."""
    for one in rows:
        places = np.flatnonzero(one.hashes == np.uint64(hashed))
        if len(places):
            number = one.first + int(places[-1])
            row = opened(one.file.read()).read().slice(number, 1).to_pylist()[0]
            return f"row {number} of {one.file.name} {_text(row)}"
    return ""


def _text(row: dict[str, Any]) -> str:
    text = ", ".join(f"{name} {value}" for name, value in row.items())
    return f"({text})" if len(text) <= TEXT_LENGTH else f"({text[:TEXT_LENGTH]} …)"
