"""`SessionPlan`: divides rows of a batch into sessions per key, and merges sessions that touch. No Python per row.

Rows are sorted by key and start; a session ends where the next row of the key starts after all that came before it has
ended. Two records whose times are at most the gap apart are in one session, and a session ends a gap after its last
record. Aggregates are computed by an `AggregatePlan` whose key is the number of the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from engine.core.event_time import EVENT_TIME
from engine.state.key_columns import Column, canonical, plain
from engine.state.windows.aggregates import Aggregate
from engine.state.windows.grouping import Groups, Ints, grouped, one_array
from engine.state.windows.plan import WINDOW, AggregatePlan, coded

END = "_end"
_NUMBER = f"{EVENT_TIME}.session"  # no column of a stream can have this name


class SessionPlan:
    """Partials have the keys, the start and the end of a session, the number of its rows and its partial aggregates."""

    def __init__(
        self, keys: Sequence[str], aggregates: Mapping[str, Aggregate], schema: pa.Schema, gap_ms: int
    ) -> None:
        assert gap_ms > 0
        self.keys = list(keys)
        self.gap_ms = gap_ms
        numbered = schema.append(pa.field(_NUMBER, pa.int64()))
        self._plan = AggregatePlan([_NUMBER], aggregates, numbered, apart=[*keys, END])
        self.partial_schema = self.partial(schema.empty_table())[0].schema
        self.result_schema = self.finish(self.partial_schema.empty_table()).schema

    @property
    def columns(self) -> list[str]:
        """The columns that partials are made from, each once."""
        return list(dict.fromkeys([*self.keys, *(name for name in self._plan.columns if name != _NUMBER)]))

    def partial(self, rows: pa.RecordBatch | pa.Table) -> tuple[pa.Table, Divided]:
        """Returns the sessions of a batch, and how they divide its rows."""
        times = rows.column(EVENT_TIME).to_numpy()
        divided = sessions_of([coded(rows.column(key)) for key in self.keys], times, times + self.gap_ms)
        keys = [canonical(plain(rows.column(key).take(pa.array(divided.some)))) for key in self.keys]
        return self._made(keys, divided.starts, divided.ends, self._plan.partials_of(rows, divided.groups)), divided

    def ungrouped(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Turns each row into a session of its own."""
        times = rows.column(EVENT_TIME).to_numpy()
        alone = self._plan.ungrouped(self._numbered(rows), 0)
        keys = [canonical(plain(rows.column(key))) for key in self.keys]
        (batch,) = self._made(keys, times, times + self.gap_ms, alone).combine_chunks().to_batches()
        return batch

    def merge(self, table: pa.Table) -> tuple[pa.Table, Divided]:
        """Merges the sessions of a key that touch; also returns how the merged ones divide the rows."""
        keys = [table.column(key) for key in self.keys]
        divided = sessions_of(keys, table.column(WINDOW).to_numpy(), table.column(END).to_numpy())
        merged = self._plan.merged_of(table, divided.groups)
        some = pa.array(divided.some)
        return self._made([key.take(some) for key in keys], divided.starts, divided.ends, merged), divided

    def _made(self, keys: Sequence[Column], starts: Ints, ends: Ints, partials: pa.RecordBatch | pa.Table) -> pa.Table:
        """Puts sessions together; `partials` has a row for each."""
        columns = [*keys, pa.array(starts), pa.array(ends), *(partials.column(name) for name in self._plan.kept)]
        return pa.table([one_array(column) for column in columns], [*self.keys, WINDOW, END, *self._plan.kept])

    def _numbered(self, rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
        """Gives each row a number of its own, the key of the plan."""
        return rows.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))

    def adopted(self, saved: pa.Table) -> pa.Table:
        """Returns the sessions of an earlier version of this plan in the form of this one."""
        kept = self._plan.adopted(self._numbered(saved.drop_columns([*self.keys, END])))
        starts, ends = (saved.column(name).to_numpy() for name in (WINDOW, END))
        return self._made([saved.column(key) for key in self.keys], starts, ends, kept)

    def finish(self, merged: pa.Table) -> pa.Table:
        """Returns the keys and the results of sessions."""
        results = self._plan.finish(self._numbered(merged)).drop_columns([_NUMBER])
        columns = {key: merged.column(key) for key in self.keys}
        return pa.table({**columns, **dict(zip(results.column_names, results.columns, strict=True))})

    def described(self) -> str:
        """Writes down which partials are kept."""
        return self._plan.described()


@dataclass(frozen=True)
class Divided:
    """Rows divided into sessions. The sessions of a key follow each other; each has a start and an end."""

    groups: Groups
    starts: Ints
    ends: Ints

    @property
    def some(self) -> Ints:
        """A row of each session."""
        return self.groups.order[self.groups.begins]

    @property
    def of(self) -> Ints:
        """The number of each row's session."""
        of = np.empty(len(self.groups.order), np.int64)
        of[self.groups.order] = self.groups.of
        return of


def sessions_of(keys: Sequence[Column], starts: Ints, ends: Ints) -> Divided:
    """Divides rows by their keys, starts and ends."""
    if not len(starts):
        none = np.zeros(0, np.int64)
        return Divided(Groups(none, none, 0), none, none)
    _, (rows,) = grouped(keys, [(pa.array(np.arange(len(starts))), "list")])
    groups = Groups.from_lists(rows)
    order = groups.order[_by_group(starts[groups.order], groups.of)]
    sorted_starts, sorted_ends = starts[order], ends[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (np.diff(groups.of) > 0) | (sorted_starts[1:] > _reach(sorted_ends, groups.of)[:-1])
    first = np.flatnonzero(begins)
    sessions = Groups(order, np.cumsum(begins) - 1, len(first))
    return Divided(sessions, sorted_starts[first], np.maximum.reduceat(sorted_ends, first))


def _by_group(starts: Ints, of: Ints) -> Ints:
    """Returns the order of rows by group, then start. Groups ascend, and starts mostly do within them, so a stable sort
    of both in one number is nearly linear."""
    low = int(starts.min())
    span = int(starts.max()) - low + 1
    if span * (int(of[-1]) + 1) >= 2**62:  # one number does not hold both
        return np.lexsort((starts, of))
    return np.argsort(of * span + (starts - low), kind="stable")


def _reach(ends: Ints, of: Ints) -> Ints:
    """Returns for each row the latest end of the rows of its group up to it. Groups ascend."""
    low = int(ends.min())
    span = int(ends.max()) - low + 1
    if span * (int(of[-1]) + 1) < 2**62:
        shifts = of * span - low
        return np.maximum.accumulate(ends + shifts) - shifts
    values, ranks = np.unique(ends, return_inverse=True)
    shifts = of * len(values)
    return values[np.maximum.accumulate(ranks + shifts) - shifts]
