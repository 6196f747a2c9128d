"""State of joins and co-groups in session windows: the rows of both sides, and the sessions that they share.

Rows of both sides with the same key are in one session if their times are at most the gap apart. An index holds the
bounds of the open sessions, so that a watermark looks at the rows of those that are over, and at no others.

Invariant: the index is what the kept rows say, so a snapshot has the rows alone, and a restore makes the index anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from engine.core.event_time import EVENT_TIME, EVENT_TIME_FIELD
from engine.state.joins.keyed_rows import KeyedRows
from engine.state.joins.rows import Ints, JoinInput, Mask
from engine.state.key_columns import canonical
from engine.state.key_hash import Hashes, hash_columns
from engine.state.windows.session_plan import END, SessionPlan, sessions_of
from engine.state.windows.session_runs import SessionRuns

Clock = Callable[[Hashes], "Ints | int"]
"""Returns the watermark that holds for keys with these hashes."""


@dataclass(frozen=True)
class Sessions:
    """Sessions that are over, and the rows of both sides in them: each row has the number of its session."""

    starts: Ints
    ends: Ints
    left: pa.RecordBatch
    left_of: Ints
    right: pa.RecordBatch
    right_of: Ints


class SessionRows:
    def __init__(self, left: JoinInput, right: JoinInput, gap_ms: int) -> None:
        self._inputs = (left, right)
        self._gap_ms = gap_ms
        self._names = [f"key {number}" for number in range(len(left.keys))]
        kinds = [left.schema.field(key).type for key in left.keys]
        fields = [pa.field(name, kind) for name, kind in zip(self._names, kinds, strict=True)]
        self._schema = pa.schema([*fields, EVENT_TIME_FIELD])
        self._plan = SessionPlan(self._names, {}, self._schema, gap_ms)
        self._index = SessionRuns(self._plan)
        self._rows = (KeyedRows(left.schema), KeyedRows(right.schema))

    def add(self, side: int, rows: pa.RecordBatch, clock: Clock) -> Mask:
        """Keeps rows of one side; returns which of them are late, and not kept.

        A row is late if it belongs to no session, together with the rows of its batch, that is still open.
        """
        sessions, divided = self._plan.partial(self._keys_and_times(side, rows))
        hashes = self._hashes(sessions)
        late = np.zeros(sessions.num_rows, np.bool_)
        over = _due(sessions) <= clock(hashes)
        if over.any():
            asked = np.isin(hashes, hashes[over])
            late[asked] = self._join(sessions.filter(pa.array(asked)), np.unique(hashes[asked]), clock)
            sessions = sessions.filter(pa.array(~asked))
        self._open(sessions)
        late_rows: Mask = late[divided.of]
        kept = rows.filter(pa.array(~late_rows)) if late.any() else rows
        self._rows[side].append(kept, self._inputs[side].hashes(kept))
        return late_rows

    def _join(self, sessions: pa.Table, hashes: Hashes, clock: Clock) -> Mask:
        """Merges sessions with those of their keys at once, as some of them are over by themselves.

        Returns which are late: a session that is over with all that it touches consists of late rows only.
        """
        held, _ = self._index.take(hashes)
        merged, divided = self._plan.merge(pa.concat_tables([sessions, held]))
        late = _due(merged) <= clock(self._hashes(merged))
        self._open(merged.filter(pa.array(~late)))
        is_late: Mask = late[divided.of[: sessions.num_rows]]
        return is_late

    def due(self, now_ms: int) -> Sessions | None:
        """Removes and returns the sessions that are over at this watermark, those that ended first in front."""
        hashes = self._index.due(now_ms, now_ms)
        if not len(hashes):
            return None
        held, _ = self._index.take(hashes)
        merged, _ = self._plan.merge(held)
        over = _due(merged) <= now_ms
        self._open(merged.filter(pa.array(~over)))
        return self._taken(np.unique(self._hashes(merged.filter(pa.array(over)))), now_ms) if over.any() else None

    def _taken(self, hashes: Hashes, now_ms: int) -> Sessions:
        """Takes the rows of these keys, and puts back those whose sessions go on."""
        left, right = (rows.take(hashes) for rows in self._rows)
        both = pa.Table.from_batches([self._keys_and_times(0, left), self._keys_and_times(1, right)])
        times = both.column(EVENT_TIME).to_numpy()
        divided = sessions_of([both.column(name) for name in self._names], times, times + self._gap_ms)
        order = np.lexsort((divided.starts, divided.ends))
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        of, starts, ends = places[divided.of], divided.starts[order], divided.ends[order]
        over = int(np.searchsorted(ends, now_ms + 1, side="right"))
        out: list[tuple[pa.RecordBatch, Ints]] = []
        for side, (rows, numbers) in enumerate(((left, of[: left.num_rows]), (right, of[left.num_rows :]))):
            gone = numbers < over
            if gone.all():
                out.append((rows, numbers))
                continue
            open_ = rows.filter(pa.array(~gone))
            self._rows[side].append(open_, self._inputs[side].hashes(open_))
            out.append((rows.filter(pa.array(gone)), numbers[gone]))
        return Sessions(starts[:over], ends[:over], *out[0], *out[1])

    def freeze(self, side: int) -> Callable[[], pa.Table]:
        """Returns a function that makes the table of the rows of one side as they are now. Any thread may call it."""
        return self._rows[side].freeze()

    def _open(self, sessions: pa.Table) -> None:
        self._index.append(sessions, np.zeros(sessions.num_rows, np.bool_))

    def _keys_and_times(self, side: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        keys = [canonical(key) for key in self._inputs[side].keys_of(rows)]
        return pa.RecordBatch.from_arrays([*keys, rows.column(EVENT_TIME)], schema=self._schema)

    def _hashes(self, sessions: pa.Table) -> Hashes:
        return hash_columns([sessions.column(name).combine_chunks() for name in self._names])

    def __len__(self) -> int:
        """The number of rows of both sides."""
        return sum(map(len, self._rows))


def _due(sessions: pa.Table) -> Ints:
    """Returns the watermark at which each session is over."""
    ends: Ints = sessions.column(END).to_numpy() - 1
    return ends
