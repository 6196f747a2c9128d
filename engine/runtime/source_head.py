"""The head of a source subtask: reads its splits in turn and keeps a position and a watermark per split (B1).

Invariants: a position never passes a row that was not handed out. The splits that were discovered together all hold the
watermark back until they are read, so no row is late because of the order in which splits are read. Splits discovered
later hold it back only while they are read, so the watermark of an unbounded source still advances. A restored source
does not go back behind the watermark of its snapshot, also not for splits that it has finished.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from engine.core.connectors import calling
from engine.core.errors import SchemaMismatch
from engine.core.event_time import EventTimeStrategy, described, event_times, latest, with_event_times
from engine.core.sources import MALFORMED, Source, SourceContext, SplitReader
from engine.core.tags import OutputTag
from engine.protocol import ledger
from engine.protocol.signals import MIN_WATERMARK
from engine.runtime.operators.base import OperatorContext, OperatorSnapshot, RestoredState
from engine.runtime.running import RUNNING
from engine.state.digests import digest, digested


class _Split:
    """A split that is read or waits. `look`: the number of the poll of the discovery that found it."""

    def __init__(self, name: str, reader: SplitReader, seen_ms: int | None, look: int) -> None:
        self.name = name
        self.reader = reader
        self.seen_ms = seen_ms
        self.look = look


class SourceHead:
    """Reads for one source subtask. `digests`: also adds a digest of the rows to the ledger."""

    def __init__(
        self, source: Source, schema: pa.Schema, strategy: EventTimeStrategy | None, digests: bool = False
    ) -> None:
        self._source = source
        self._digested = digested(schema) if digests else []
        self._schema = schema
        self._strategy = strategy
        self._splits: list[_Split] = []
        self._finished: dict[str, int | None] = {}  # splits read to their ends and closed, with the latest event time
        self._aside: list[tuple[OutputTag, pa.RecordBatch]] = []
        self._next = 0
        self._look = 0
        self._seen_ms: int | None = None
        self._watermark = MIN_WATERMARK

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._held: dict[str, dict[str, Any]] = {}
        self._held_finished: dict[str, int | None] = {}
        self._held_watermarks: dict[str, int] = {}
        for inline in restored.inline if restored else []:
            self._held.update(inline["splits"])
            self._held_finished.update(inline["finished"])
            self._held_watermarks.update(dict.fromkeys([*inline["splits"], *inline["finished"]], inline["watermark"]))
        self._source_context = SourceContext(
            context.uid,
            context.subtask.index,
            context.parallelism,
            context.clock,
            context.offload,
            context.store,
            context.paths,
            self._schema,
            context.attempt,
            restored=bool(restored and restored.inline),
            discovered=[inline.get("discovery") for inline in restored.inline] if restored else [],
        )
        known = [*self._held, *sorted(self._held_finished)]
        with calling(context.uid, context.subtask.index, self._source, "discovery()"):
            self._discovery = self._source.discovery(self._source_context, known)
            self._admit()
        # Each split has come as far as the subtask that read it; this one goes on from the least of its splits.
        own = [*(split.name for split in self._splits), *self._finished]
        self._reached_ms = min((self._held_watermarks.get(name, MIN_WATERMARK) for name in own), default=MIN_WATERMARK)

    def _admit(self) -> None:
        """Opens the splits that the discovery has found."""
        found = self._discovery.poll()
        self._look += bool(found)
        for name in found:
            if name in self._held_finished:
                self._finished[name] = self._held_finished[name]
                self._seen_ms = _later(self._seen_ms, self._finished[name])
                continue
            state = self._held.get(name, {})
            reader = self._source.reader(name, state.get("position"), self._source_context)
            split = _Split(name, reader, state.get("seen_ms"), self._look)
            self._splits.append(split)
            self._seen_ms = _later(self._seen_ms, split.seen_ms)

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """Returns rows of the next split that has some."""
        before = RUNNING.set(self._context)
        batch = self._poll(max_rows)
        RUNNING.reset(before)
        return batch

    def _poll(self, max_rows: int) -> pa.RecordBatch | None:
        with calling(self._context.uid, self._context.subtask.index, self._source, "discovery"):
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
            with calling(self._context.uid, self._context.subtask.index, self._source, f"split {split.name!r}, poll()"):
                batch = split.reader.poll(max_rows)
                self._put_aside(split.reader.malformed())
            if batch is None or not batch.num_rows:
                continue
            self._next = (self._next + step + 1) % len(splits)
            return self._stamp(split, batch)
        return None

    def _let_go(self) -> None:
        """Closes splits that were read to their ends and keeps only their names and latest event times."""
        for split in [s for s in self._splits[: self._source.open_splits] if s.reader.finished]:
            self._splits.remove(split)
            self._finished[split.name] = split.seen_ms
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
        if self._digested:
            added = digest([batch.column(name) for name in self._digested])
            ledger.add(self._context.counters, {ledger.source_digest(self._context.uid): added})
        if self._strategy is None:
            return batch
        times = event_times(batch, self._strategy.column, f"source {self._context.uid!r}, split {split.name!r}")
        highest = latest(times)
        split.seen_ms = _later(split.seen_ms, highest)
        self._seen_ms = _later(self._seen_ms, highest)
        return with_event_times(batch, times)

    def watermark(self) -> int | None:
        """Returns how far the splits that count have come, if it is further than what was returned before.

        After a restore it is at least the watermark of the snapshot.
        """
        if self._strategy is None:
            return None
        lowest = self._lowest_seen_ms()
        if lowest is not None:
            self._reached_ms = max(self._reached_ms, self._strategy.watermark(lowest))
        if self._reached_ms <= self._watermark:
            return None
        self._watermark = self._reached_ms
        return self._watermark

    def _lowest_seen_ms(self) -> int | None:
        """Returns the lowest of the latest event times of the splits that hold the watermark back, if all have one."""
        if not self._discovery.ready:
            return None
        seen = [split.seen_ms for split in self._holding()]
        if not seen and not self.finished:
            return self._seen_ms  # every known split was read to its end
        known = [time for time in seen if time is not None]
        return min(known) if known and len(known) == len(seen) else None

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
        """When to poll again after a poll without rows; None: soon, or after offloaded work."""
        times = [split.reader.wakeup_ms for split in self._splits if not split.reader.finished]
        if not self._discovery.finished:
            times.append(self._discovery.wakeup_ms)
        return None if any(time is None for time in times) else min((t for t in times if t is not None), default=None)

    def snapshot(self) -> OperatorSnapshot:
        """A source without event time keeps none: it may get it later, from any column."""
        timed = self._strategy is not None
        with calling(self._context.uid, self._context.subtask.index, self._source, "position"):
            splits = {
                s.name: {"position": s.reader.position, "seen_ms": s.seen_ms if timed else None} for s in self._splits
            }
        finished = dict(self._finished) if timed else dict.fromkeys(self._finished)
        watermark = self._reached_ms if timed else MIN_WATERMARK
        inline = {"splits": splits, "finished": finished, "watermark": watermark}
        if (found := self._discovery.state) is not None:
            inline["discovery"] = found
        return OperatorSnapshot(inline=inline)

    def close(self) -> None:
        for split in self._splits:
            split.reader.close()


def _later(one_ms: int | None, other_ms: int | None) -> int | None:
    return max((time for time in (one_ms, other_ms) if time is not None), default=None)
