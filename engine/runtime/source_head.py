"""The head of a source subtask: reads its splits in turn and keeps a position and a watermark per split (B1).

Invariants: a position never passes a row that was not handed out. The splits that were discovered together all hold the
watermark back until they are read, so no row is late because of the order in which splits are read. Splits discovered
later hold it back only while they are read, so the watermark of an unbounded source still advances.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from engine.core.errors import SchemaMismatch
from engine.core.event_time import EventTimeStrategy, described, event_times, with_event_times
from engine.core.sources import MALFORMED, Source, SourceContext, SplitReader
from engine.core.tags import OutputTag
from engine.protocol import ledger
from engine.protocol.signals import MIN_WATERMARK
from engine.runtime.connectors import calling
from engine.runtime.operators.base import OperatorContext, OperatorSnapshot, RestoredState
from engine.runtime.running import RUNNING


class _Split:
    """`look`: the number of the discovery's listing that found this split."""

    def __init__(self, name: str, reader: SplitReader, seen_ms: int | None, look: int) -> None:
        self.name = name
        self.reader = reader
        self.seen_ms = seen_ms
        self.look = look


class SourceHead:
    def __init__(self, source: Source, schema: pa.Schema, strategy: EventTimeStrategy | None) -> None:
        self._source = source
        self._schema = schema
        self._strategy = strategy
        self._splits: list[_Split] = []
        self._finished: list[str] = []  # names of splits that were read to their ends and closed
        self._aside: list[tuple[OutputTag, pa.RecordBatch]] = []
        self._next = 0
        self._look = 0
        self._seen_ms: int | None = None
        self._watermark = MIN_WATERMARK

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._held: dict[str, dict[str, Any]] = {}
        self._held_finished: set[str] = set()
        for inline in restored.inline if restored else []:
            self._held.update(inline["splits"])
            self._held_finished.update(inline.get("finished", ()))
        self._source_context = SourceContext(
            context.uid,
            context.subtask.index,
            context.parallelism,
            context.clock,
            context.offload,
            context.store,
            context.paths,
            self._schema,
        )
        known = [*self._held, *sorted(self._held_finished)]
        with calling(context, self._source, "discovery()"):
            self._discovery = self._source.discovery(self._source_context, known)
            self._admit()

    def _admit(self) -> None:
        """Opens the splits that the discovery has found."""
        found = self._discovery.poll()
        self._look += bool(found)
        for name in found:
            if name in self._held_finished:
                self._finished.append(name)
                continue
            state = self._held.get(name, {})
            reader = self._source.reader(name, state.get("position"), self._source_context)
            self._splits.append(_Split(name, reader, state.get("seen_ms"), self._look))

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """Returns rows of the next split that has some."""
        before = RUNNING.set(self._context)
        batch = self._poll(max_rows)
        RUNNING.reset(before)
        return batch

    def _poll(self, max_rows: int) -> pa.RecordBatch | None:
        with calling(self._context, self._source, "discovery"):
            if not self._discovery.finished:
                self._admit()
        splits = self._splits
        if self._source.open_splits is not None:
            self._let_go()
            splits = self._splits[: self._source.open_splits]
        for step in range(len(splits)):
            split = splits[(self._next + step) % len(splits)]
            if split.reader.finished:
                continue
            with calling(self._context, self._source, f"split {split.name!r}, poll()"):
                batch = split.reader.poll(max_rows)
                self._put_aside(split.reader.malformed())
            if batch is None or not batch.num_rows:
                continue
            self._next = (self._next + step + 1) % len(splits)
            return self._stamp(split, batch)
        return None

    def _let_go(self) -> None:
        """Closes splits that were read to their ends and keeps only their names."""
        for split in [s for s in self._splits[: self._source.open_splits] if s.reader.finished]:
            self._splits.remove(split)
            self._finished.append(split.name)
            self._next = 0  # the split that has waited longest is now the first
            split.reader.close()

    def _put_aside(self, malformed: pa.RecordBatch | None) -> None:
        if malformed is None:
            return
        self._context.count(ledger.malformed_rows(self._context.uid), malformed.num_rows)
        if MALFORMED in self._source.side_outputs:
            self._aside.append((MALFORMED, malformed))

    def take_aside(self) -> list[tuple[OutputTag, pa.RecordBatch]]:
        """Returns the side output rows of the last poll, each once."""
        aside, self._aside = self._aside, []
        return aside

    def _stamp(self, split: _Split, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema != self._schema:
            raise SchemaMismatch(
                f"source {self._context.uid!r}, split {split.name!r} gave records of ({described(batch.schema)}), "
                f"but the job declares ({described(self._schema)}): make the two agree"
            )
        self._context.count(ledger.source_rows(self._context.uid), batch.num_rows)
        if self._strategy is None:
            return batch
        times = event_times(batch, self._strategy.column, self._context.uid)
        highest = int(times.max())
        split.seen_ms = highest if split.seen_ms is None else max(split.seen_ms, highest)
        self._seen_ms = highest if self._seen_ms is None else max(self._seen_ms, highest)
        return with_event_times(batch, times)

    def watermark(self) -> int | None:
        """Returns the lowest watermark of the splits that count, if it advanced."""
        if self._strategy is None or not self._discovery.ready:
            return None
        seen = [split.seen_ms for split in self._holding()]
        if not seen and not self.finished:
            seen = [self._seen_ms]  # every known split was read to its end
        known = [time for time in seen if time is not None]
        if not known or len(known) < len(seen):
            return None
        lowest = self._strategy.watermark(min(known))
        if lowest <= self._watermark:
            return None
        self._watermark = lowest
        return lowest

    def _holding(self) -> list[_Split]:
        """Returns the splits that hold the watermark back: those being read, and all that were found with the first."""
        unfinished = [split for split in self._splits if not split.reader.finished]
        reading = self._source.open_splits
        return [
            split
            for place, split in enumerate(unfinished)
            if split.look == unfinished[0].look or (reading is not None and place < reading)
        ]

    @property
    def ready(self) -> bool:
        """True once the splits are known; a snapshot taken before that would lose them."""
        return self._discovery.ready

    @property
    def idle(self) -> bool:
        """True while there is nothing to read until the discovery finds another split."""
        waiting = self._discovery.ready and not self._discovery.finished
        return waiting and all(split.reader.finished for split in self._splits)

    @property
    def finished(self) -> bool:
        return self._discovery.finished and all(split.reader.finished for split in self._splits)

    @property
    def wakeup_ms(self) -> float | None:
        """When to poll again; None: now."""
        times = [split.reader.wakeup_ms for split in self._splits if not split.reader.finished]
        if not self._discovery.finished:
            times.append(self._discovery.wakeup_ms)
        return None if any(time is None for time in times) else min((t for t in times if t is not None), default=None)

    def snapshot(self) -> OperatorSnapshot:
        with calling(self._context, self._source, "position"):
            splits = {s.name: {"position": s.reader.position, "seen_ms": s.seen_ms} for s in self._splits}
        finished = {"finished": list(self._finished)} if self._finished else {}
        return OperatorSnapshot(inline={"splits": splits, **finished})

    def close(self) -> None:
        for split in self._splits:
            split.reader.close()
