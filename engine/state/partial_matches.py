"""The state of a pattern per key (A11): records that wait for the watermark, and partial matches.

A partial match is a chain of taken records, of which several share the beginning, and all share the records. Nothing of
a chain changes after it was made. So a record that no partial match needs any more is freed by itself, a snapshot takes
references only, and it holds each record once per key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from engine.core.functions import Row
from engine.state.keyed.backend import Key
from engine.state.values import objects_of, thawed

WAITING, TAKEN, CHAINS, PARTIAL = "pattern: waiting", "pattern: taken", "pattern: chains", "pattern: matches"
PATTERN_PARTS = (WAITING, TAKEN, CHAINS, PARTIAL)
"""The names of the parts in a snapshot. A state of a function can't have them."""


@dataclass(frozen=True, slots=True)
class Event:
    """A record in the order in which the pattern saw it: `number` counts the records of its key."""

    number: int
    time_ms: int
    record: Row


@dataclass(frozen=True, slots=True)
class Taken:
    """The newest record of a chain, at a place of the pattern."""

    place: int
    event: Event
    before: Taken | None

    def chain(self) -> list[Taken]:
        """Returns the chain from its first record."""
        links: list[Taken] = []
        link: Taken | None = self
        while link is not None:
            links.append(link)
            link = link.before
        return links[::-1]


@dataclass(frozen=True, slots=True)
class PartialMatch:
    """`open`: the edges of its place that are still possible. `fresh`: its newest record was the last one of all."""

    taken: Taken
    first: Event
    open: tuple[int, ...]
    fresh: bool


@dataclass(slots=True)
class OfKey:
    """`held`: matches that are complete and wait for partial matches that began before them."""

    waiting: dict[int, list[Row]] = field(default_factory=dict)
    partial: list[PartialMatch] = field(default_factory=list)
    held: list[PartialMatch] = field(default_factory=list)
    seen: int = 0

    @property
    def empty(self) -> bool:
        return not (self.waiting or self.partial or self.held)


class PatternState:
    """`labels`: the names of the pattern's places, by which snapshots refer to them. Lists of a key are replaced, never
    changed, except those of waiting records."""

    def __init__(self, key_fields: Sequence[pa.Field], record: pa.DataType, labels: Sequence[str]) -> None:
        self.keys: dict[Key, OfKey] = {}
        self._fields = list(key_fields)
        self._record = record
        self._labels = list(labels)
        self._restored: dict[str, list[pa.Table]] = {name: [] for name in PATTERN_PARTS}

    def snapshot(self) -> list[tuple[str, Callable[[], pa.Table]]]:
        """Returns for each part a function that makes its table. Later changes do not show in it."""
        waiting = [(key, at, list(rows)) for key, of in self.keys.items() for at, rows in of.waiting.items()]
        matches = [(key, of.partial, of.held) for key, of in self.keys.items() if of.partial or of.held]
        parts: list[tuple[str, Callable[[], pa.Table]]] = []
        if waiting:
            parts.append((WAITING, lambda: self._waiting(waiting)))
        if matches:
            parts.append((TAKEN, lambda: self._taken(matches)))
            parts.append((CHAINS, lambda: self._chains(matches)))
            parts.append((PARTIAL, lambda: self._partial(matches)))
        return parts

    def restore(self, name: str, table: pa.Table) -> None:
        """Takes part of a saved state; `load` is called after the last one."""
        self._restored[name].append(table)

    def load(self, canonical: Callable[[Iterator[Key]], Iterator[Key]]) -> None:
        for key, row in sorted(self._rows(WAITING, canonical), key=lambda found: found[1]["_place"]):
            of = self.keys.setdefault(key, OfKey())
            of.waiting.setdefault(row["_time_ms"], []).append(row["_record"])
        events: dict[Key, dict[int, Event]] = {}
        for key, row in self._rows(TAKEN, canonical):
            event = Event(row["_number"], row["_time_ms"], row["_record"])
            events.setdefault(key, {})[event.number] = event
        chains: dict[Key, dict[int, Taken]] = {}
        for key, row in sorted(self._rows(CHAINS, canonical), key=lambda found: found[1]["_link"]):
            links = chains.setdefault(key, {})
            before = links[row["_before"]] if row["_before"] is not None else None
            links[row["_link"]] = Taken(self._labels.index(row["_at"]), events[key][row["_number"]], before)
        for key, row in sorted(self._rows(PARTIAL, canonical), key=lambda found: found[1]["_order"]):
            of = self.keys.setdefault(key, OfKey())
            taken = chains[key][row["_link"]]
            match = PartialMatch(taken, taken.chain()[0].event, tuple(row["_open"]), row["_fresh"])
            (of.held if row["_held"] else of.partial).append(match)
            of.seen = max(events[key]) + 1
        self._restored.clear()

    # --- tables ---

    def _waiting(self, held: list[tuple[Key, int, list[Row]]]) -> pa.Table:
        rows = [(key, at, place, row) for key, at, several in held for place, row in enumerate(several)]
        return self._table(
            [key for key, *_ in rows],
            _time_ms=pa.array([at for _, at, _, _ in rows], pa.int64()),
            _place=pa.array([place for _, _, place, _ in rows], pa.int64()),
            _record=pa.array([row for *_, row in rows], self._record),
        )

    def _taken(self, held: _Matches) -> pa.Table:
        rows = []
        for key, matches in _each(held):
            events = {link.event.number: link.event for match in matches for link in match.taken.chain()}
            rows += [(key, event) for event in events.values()]
        return self._table(
            [key for key, _ in rows],
            _number=pa.array([event.number for _, event in rows], pa.int64()),
            _time_ms=pa.array([event.time_ms for _, event in rows], pa.int64()),
            _record=pa.array([event.record for _, event in rows], self._record),
        )

    def _chains(self, held: _Matches) -> pa.Table:
        rows: list[tuple[Key, int, Taken, int | None]] = []
        for key, matches in _each(held):
            numbers = _numbered(matches)
            for link, number in numbers.values():
                rows.append((key, number, link, numbers[id(link.before)][1] if link.before else None))
        return self._table(
            [key for key, *_ in rows],
            _link=pa.array([number for _, number, _, _ in rows], pa.int64()),
            _before=pa.array([before for *_, before in rows], pa.int64()),
            _at=pa.array([self._labels[link.place] for _, _, link, _ in rows], pa.string()),
            _number=pa.array([link.event.number for _, _, link, _ in rows], pa.int64()),
        )

    def _partial(self, held: _Matches) -> pa.Table:
        rows: list[tuple[Key, int, int, PartialMatch, bool]] = []
        for key, partial, complete in held:
            numbers = _numbered([*partial, *complete])
            for order, match in enumerate([*partial, *complete]):
                rows.append((key, order, numbers[id(match.taken)][1], match, order >= len(partial)))
        return self._table(
            [key for key, *_ in rows],
            _order=pa.array([order for _, order, *_ in rows], pa.int64()),
            _link=pa.array([link for _, _, link, _, _ in rows], pa.int64()),
            _open=pa.array([list(match.open) for *_, match, _ in rows], pa.list_(pa.int32())),
            _fresh=pa.array([match.fresh for *_, match, _ in rows], pa.bool_()),
            _held=pa.array([complete for *_, complete in rows], pa.bool_()),
        )

    def _table(self, keys: Sequence[Key], **columns: pa.Array) -> pa.Table:
        of_key = list(zip(*keys, strict=True))
        arrays = [pa.array(column, field.type) for column, field in zip(of_key, self._fields, strict=True)]
        names = [*(field.name for field in self._fields), *map(self._column, columns)]
        return pa.table([*arrays, *columns.values()], names=names)

    def _rows(self, name: str, canonical: Callable[[Iterator[Key]], Iterator[Key]]) -> Iterator[tuple[Key, Row]]:
        """Returns the saved rows of a part. Records are adapted to the schema that the job has now."""
        for table in self._restored[name]:
            keys = canonical(zip(*(table.column(field.name).to_pylist() for field in self._fields), strict=True))
            columns: dict[str, list[Any]] = {}
            for column in _COLUMNS[name]:
                saved = table.column(self._column(column))
                columns[column] = thawed(name, self._record, saved) if column == "_record" else objects_of(saved)
            for key, *values in zip(keys, *columns.values(), strict=True):
                yield key, dict(zip(columns, values, strict=True))

    def _column(self, name: str) -> str:
        """Returns the name of a column in the table: longer if a key column has the same name."""
        while any(field.name == name for field in self._fields):
            name += "_"
        return name


_Matches = list[tuple[Key, list[PartialMatch], list[PartialMatch]]]
_COLUMNS = {
    WAITING: ("_time_ms", "_place", "_record"),
    TAKEN: ("_number", "_time_ms", "_record"),
    CHAINS: ("_link", "_before", "_at", "_number"),
    PARTIAL: ("_order", "_link", "_open", "_fresh", "_held"),
}


def _each(held: _Matches) -> Iterable[tuple[Key, list[PartialMatch]]]:
    return ((key, [*partial, *complete]) for key, partial, complete in held)


def _numbered(matches: Iterable[PartialMatch]) -> dict[int, tuple[Taken, int]]:
    """Numbers the links of chains in an order that a restore keeps: a link comes after the one before it."""
    numbers: dict[int, tuple[Taken, int]] = {}
    for match in matches:
        for link in match.taken.chain():
            numbers.setdefault(id(link), (link, len(numbers)))
    return numbers
