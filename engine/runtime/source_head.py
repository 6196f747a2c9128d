"""The head of a source subtask: reads its splits in turn and keeps a position and a watermark per split (B1).

Invariants: a position never passes a row that was not handed out. The splits that were discovered together all hold the
watermark back until they are read, so no row is late because of the order in which splits are read. Splits discovered
later hold it back only while they are read, so the watermark of an unbounded source still advances. A restored source
does not go back behind the watermark of its snapshot, also not for splits that it has finished. A split of an aligned
source is not read while its watermark is above the limit of its group; that is no state, so a snapshot has none of it.
Nor has it anything of idle splits: a split that has given no rows for the time that the strategy allows holds nothing
back, neither the watermark nor its group, until it gives some. When all are idle the watermark is the furthest one's,
as it is where splits of several subtasks meet (engine/runtime/exchange/gate.py).
A generator of the job's author may say how far a split has come (engine/runtime/generated_watermarks.py); the snapshot
then has the watermark of each split, and what its generator keeps.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engine.core.closing import close_all
from engine.core.connectors import calling
from engine.core.errors import SchemaMismatch
from engine.core.event_time import EventTimeStrategy, described, event_times, latest, with_event_times
from engine.core.sources import MALFORMED, Dealt, Discovery, Source, SourceContext, SplitReader
from engine.core.tags import OutputTag
from engine.protocol import ledger
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.protocol.watermark_alignment import AlignmentWait, WatermarkAlignment, drift_of
from engine.runtime.generated_watermarks import GeneratedWatermark
from engine.runtime.operators.base import OperatorContext, OperatorSnapshot, RestoredState
from engine.runtime.running import RUNNING
from engine.state.digests import digest, digested

LEAST_ROWS = 64
"""An aligned source reads at least so many rows at a time, however near the limit is."""


class _Split:
    """A split that is read or waits. `look`: the number of the poll of the discovery that found it.

    `row_ms`: how far its last rows moved event time, per row; 0 if it is not known. `quiet_since_ms`: when it was first
    found without rows, after its last ones; None: it gave some when it was asked last, or it was not asked.
    `generated`: its watermark, if a generator makes it.
    """

    def __init__(
        self, name: str, reader: SplitReader, seen_ms: int | None, look: int, generated: GeneratedWatermark | None
    ) -> None:
        self.name = name
        self.reader = reader
        self.seen_ms = seen_ms
        self.look = look
        self.generated = generated
        self.row_ms = 0.0
        self.quiet_since_ms: float | None = None


class SourceHead:
    """Reads for one source subtask. `digests`: also adds a digest of the rows to the ledger."""

    def __init__(
        self, source: Source, schema: pa.Schema, strategy: EventTimeStrategy | None, digests: bool = False
    ) -> None:
        self._source = source
        self._digested = digested(schema) if digests else []
        self._schema = schema
        self._required = [field.name for field in schema if not field.nullable]
        self._strategy = strategy
        self._splits: list[_Split] = []
        self._finished: dict[str, int | None] = {}  # splits read to their ends and closed, with the latest event time
        self._aside: list[tuple[OutputTag, pa.RecordBatch]] = []
        self._next = 0
        self._look = 0
        self._discovery: Discovery = Dealt(())  # until `open`
        self._told: dict[int, dict[str, Any]] = {}  # by checkpoint that is not over, the position of each split
        self._seen_ms: int | None = None
        self._watermark = MIN_WATERMARK
        self.alignment: WatermarkAlignment | None = strategy.alignment if strategy is not None else None
        self.limit_ms = MAX_WATERMARK if self.alignment is None else MIN_WATERMARK
        """Splits whose watermarks are above it are not read. At first each is read only until it has a watermark."""
        self._row_ms = 0.0
        self._idle_ms = strategy.idle_ms if strategy is not None else None
        self._generates = strategy is not None and strategy.generator is not None
        self._finished_watermarks: dict[str, int] = {}  # of the splits in `_finished`, where generators make them
        self.row_lane = False
        """True if a generator is called with each record."""
        self.taken_ms = 0.0
        """When the last batch was taken from its split."""

    def open(
        self,
        context: OperatorContext,
        restored: RestoredState | None,
        dictionaries: frozenset[str] = frozenset(),
        read: frozenset[str] | None = None,
    ) -> None:
        """Opens the source at the positions that were restored.

        `dictionaries`: the columns that the first operator takes so. `read`: those that the chain reads; None: all.
        Digests and generators of watermarks get whole records, without dictionaries.
        """
        self._context = context
        whole = bool(self._digested) or self._generates
        self._narrow = self._schema if whole or read is None else self._narrowed(read)
        self._held: dict[str, dict[str, Any]] = {}
        self._held_finished: dict[str, int | None] = {}
        self._held_watermarks: dict[str, int] = {}
        self._held_generated: dict[str, int] = {}
        self._held_generators: dict[str, Any] = {}
        for inline in restored.inline if restored else []:
            self._held.update(inline["splits"])
            self._held_finished.update(inline["finished"])
            self._held_watermarks.update(dict.fromkeys([*inline["splits"], *inline["finished"]], inline["watermark"]))
            self._held_generated.update(inline.get("generated", {}))
            self._held_generators.update(inline.get("generators", {}))
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
            dictionaries=frozenset() if whole else dictionaries,
            columns=None if self._narrow is self._schema else frozenset(self._narrow.names),
        )
        known = [*self._held, *sorted(self._held_finished)]
        with calling(context.uid, context.subtask.index, self._source, "discovery()"):
            self._discovery = self._source.discovery(self._source_context, known)
            self._admit()
        # Each split has come as far as the subtask that read it; this one goes on from the least of its splits.
        own = [*(split.name for split in self._splits), *self._finished]
        self._reached_ms = min((self._held_watermarks.get(name, MIN_WATERMARK) for name in own), default=MIN_WATERMARK)

    def _narrowed(self, read: frozenset[str]) -> pa.Schema:
        """Returns the columns that are read, with those of the event time and of checks. At least one: it has the rows.

        It is the schema itself if that is all of it.
        """
        timed = [self._strategy.column] if self._strategy is not None else []
        needed = {*read, *timed, *self._required} & set(self._schema.names) or {self._schema.names[0]}
        fields = [field for field in self._schema if field.name in needed]
        return self._schema if len(fields) == len(self._schema) else pa.schema(fields)

    def _admit(self) -> None:
        """Opens the splits that the discovery has found."""
        found = self._discovery.poll()
        self._look += bool(found)
        for name in found:
            if name in self._held_finished:
                self._finished[name] = self._held_finished[name]
                self._seen_ms = _later(self._seen_ms, self._finished[name])
                if self._generates:
                    self._finished_watermarks[name] = self._held_generated.get(name, MIN_WATERMARK)
                continue
            state = self._held.get(name, {})
            reader = self._source.reader(name, state.get("position"), self._source_context)
            split = _Split(name, reader, state.get("seen_ms"), self._look, self._generated(name))
            self._splits.append(split)
            self._seen_ms = _later(self._seen_ms, split.seen_ms)

    def _generated(self, name: str) -> GeneratedWatermark | None:
        if self._strategy is None or not self._generates:
            return None
        reached_ms = self._held_generated.get(name, MIN_WATERMARK)
        made = GeneratedWatermark(self._strategy, self._context, name, reached_ms, self._held_generators.get(name))
        self.row_lane = self.row_lane or made.by_row
        return made

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
        for split in self._reading() if self._generates else ():
            assert split.generated is not None
            split.generated.on_time()
        splits = self._splits
        if self._source.open_splits is not None:
            self._let_go()
            splits = self._splits[: self._source.open_splits]
        for step in range(len(splits)):
            split = splits[(self._next + step) % len(splits)]
            if split.reader.finished:
                continue
            if self._paused(split):
                split.quiet_since_ms = None  # it is not asked, so nobody knows whether it has rows
                continue
            with calling(self._context.uid, self._context.subtask.index, self._source, f"split {split.name!r}, poll()"):
                batch = split.reader.poll(self._room(split, max_rows))
                self._put_aside(split.reader.malformed())
            if batch is None or not batch.num_rows:
                if split.quiet_since_ms is None:
                    split.quiet_since_ms = self._context.clock.now_ms()
                continue
            split.quiet_since_ms = None
            self.taken_ms = self._context.clock.now_ms()
            self._next = (self._next + step + 1) % len(splits)
            return self._stamp(split, batch)
        return None

    def _let_go(self) -> None:
        """Closes splits that were read to their ends and keeps only their names and latest event times."""
        for split in [s for s in self._splits[: self._source.open_splits] if s.reader.finished]:
            self._splits.remove(split)
            self._finished[split.name] = split.seen_ms
            if split.generated is not None:
                self._finished_watermarks[split.name] = split.generated.reached_ms
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

    def _check_nulls(self, split: _Split, batch: pa.RecordBatch) -> None:
        for name in self._required:
            if name in batch.schema.names and batch.column(name).null_count:
                raise SchemaMismatch(
                    f"source {self._context.uid!r}, split {split.name!r}: the column {name!r} is declared NOT NULL, "
                    f"and {batch.column(name).null_count} of {batch.num_rows} records have a null there"
                )

    def _stamp(self, split: _Split, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._check_nulls(split, batch)
        if not self._is_declared(batch.schema):
            raise SchemaMismatch(
                f"source {self._context.uid!r}, split {split.name!r} gave records of ({described(batch.schema)}), "
                f"but the job declares ({described(self._schema)}): make the two agree"
            )
        self._context.count(ledger.source_rows(self._context.uid), batch.num_rows)
        if self._digested:
            added = digest([batch.column(name) for name in self._digested])
            ledger.add(self._context.counters, {ledger.source_digest(self._context.uid): added})
        if len(batch.schema) > len(self._narrow):
            batch = batch.select(self._narrow.names)
        if self._strategy is None:
            return batch
        times = event_times(batch, self._strategy.column, f"source {self._context.uid!r}, split {split.name!r}")
        highest, before_ms = latest(times), split.seen_ms
        split.seen_ms = _later(before_ms, highest)
        if self.alignment is not None and split.seen_ms is not None:
            began_ms = pc.min(times).as_py() if before_ms is None else before_ms
            split.row_ms = self._row_ms = (split.seen_ms - began_ms) / batch.num_rows
        self._seen_ms = _later(self._seen_ms, highest)
        if split.generated is not None:
            split.generated.on_batch(batch, times)
        return with_event_times(batch, times)

    def _is_declared(self, schema: pa.Schema) -> bool:
        """Says whether a schema is the declared one, but for columns that may be left out, or be dictionaries."""
        declared = self._schema if len(schema) == len(self._schema) else self._narrow
        if schema == declared:
            return True
        wanted = self._source_context.dictionaries
        fields = [
            field.with_type(field.type.value_type)
            if field.name in wanted and pa.types.is_dictionary(field.type)
            else field
            for field in schema
        ]
        return bool(pa.schema(fields) == declared)

    def watermark(self) -> int | None:
        """Returns how far the splits that count have come, if it is further than what was returned before.

        After a restore it is at least the watermark of the snapshot.
        """
        if self._strategy is None:
            return None
        self._reached_ms = max(self._reached_ms, self._combined_ms())
        if self._reached_ms <= self._watermark:
            return None
        self._watermark = self._reached_ms
        return self._watermark

    def _combined_ms(self) -> int:
        """Returns the lowest watermark of the splits that hold event time back."""
        if not self._discovery.ready:
            return MIN_WATERMARK
        reached = [self._reached(split) for split in self._holding()]
        if not reached and not self.finished:
            return self._furthest_ms()  # every known split was read to its end, or is idle
        return min(reached, default=MIN_WATERMARK)

    def _furthest_ms(self) -> int:
        """Returns the highest watermark of all splits, also of those that were read to their ends."""
        if self._strategy is None or not self._generates:
            return self._made_of(self._seen_ms)
        going = [split.generated.reached_ms for split in self._splits if split.generated is not None]
        return max([*going, *self._finished_watermarks.values()], default=MIN_WATERMARK)

    def _holding(self) -> list[_Split]:
        """Returns the splits that hold the watermark back: those being read, and all that were found with the first.

        Idle splits hold nothing back.
        """
        unfinished = enumerate(split for split in self._splits if not split.reader.finished)
        going = [(place, split) for place, split in unfinished if not self._is_idle(split)]
        reading = self._source.open_splits
        return [
            split
            for place, split in going
            if split.look == going[0][1].look or (reading is not None and place < reading)
        ]

    def _is_idle(self, split: _Split) -> bool:
        if split.generated is not None and split.generated.idle:
            return True
        due_ms = self._idle_due_ms(split)
        return due_ms is not None and self._context.clock.now_ms() >= due_ms

    def _idle_due_ms(self, split: _Split) -> float | None:
        """Returns when a split falls idle, or has fallen; None: it has given rows, or the job has no idleness."""
        return None if self._idle_ms is None or split.quiet_since_ms is None else split.quiet_since_ms + self._idle_ms

    # --- alignment with the other members of the group ---

    def _reading(self) -> list[_Split]:
        """Returns the splits that are read now, as far as they are allowed to. Those behind them wait for their turn:
        they do not count, since they could not catch up."""
        unfinished = [split for split in self._splits if not split.reader.finished]
        return unfinished if self._source.open_splits is None else unfinished[: self._source.open_splits]

    def _reached(self, split: _Split) -> int:
        """Returns the watermark of a split."""
        return self._made_of(split.seen_ms) if split.generated is None else split.generated.reached_ms

    def _made_of(self, seen_ms: int | None) -> int:
        """Returns the watermark for the latest event time seen."""
        assert self._strategy is not None
        return MIN_WATERMARK if seen_ms is None else self._strategy.watermark(seen_ms)

    def _paused(self, split: _Split) -> bool:
        return self.alignment is not None and self._reached(split) > self.limit_ms

    def _room(self, split: _Split, max_rows: int) -> int:
        """Returns how many rows to read: about as many as reach the limit, judged by the rows before them."""
        row_ms = split.row_ms or self._row_ms
        if self.alignment is None or self.limit_ms == MAX_WATERMARK or not row_ms:
            return max_rows
        reached_ms = self._reached(split)
        room_ms = self.alignment.max_drift_ms if reached_ms == MIN_WATERMARK else self.limit_ms - reached_ms
        return min(max_rows, max(LEAST_ROWS, int(room_ms / row_ms)))

    def lowest_ms(self) -> int | None:
        """Returns the lowest watermark of the splits that are read; None if there is nothing to read."""
        if not self._discovery.ready:
            return MIN_WATERMARK
        return min((self._reached(split) for split in self._reading() if not self._is_idle(split)), default=None)

    def waits(self) -> AlignmentWait | None:
        """Returns what waits for the rest of the group; None if every split is read."""
        if self.alignment is None:
            return None
        reading = self._reading()
        ahead = [self._reached(split) for split in reading if self._paused(split)]
        if not ahead:
            return None
        group, drift_ms = self.alignment.group, self.alignment.max_drift_ms
        return AlignmentWait(group, len(ahead), len(reading), drift_of(max(ahead), self.limit_ms, drift_ms), drift_ms)

    @property
    def ready(self) -> bool:
        """True once the splits are known; a snapshot taken before that would lose them."""
        return self._discovery.ready

    @property
    def idle(self) -> bool:
        """True while there is nothing to read: until the discovery finds another split, or an idle one gives rows."""
        unfinished = [split for split in self._splits if not split.reader.finished]
        if not self._discovery.ready or (not unfinished and self._discovery.finished):
            return False
        return all(self._is_idle(split) for split in unfinished)

    @property
    def finished(self) -> bool:
        return self._discovery.finished and all(split.reader.finished for split in self._splits)

    @property
    def wakeup_ms(self) -> float | None:
        """When to poll again after a poll without rows; None: soon, or after offloaded work."""
        asked = [split for split in self._splits if not split.reader.finished and not self._paused(split)]
        times = [split.reader.wakeup_ms for split in asked]
        dues = [self._idle_due_ms(split) for split in asked if not self._is_idle(split)]
        dues += [split.generated.due_ms for split in self._reading() if split.generated is not None]
        times += [due for due in dues if due is not None]
        if not self._discovery.finished:
            times.append(self._discovery.wakeup_ms)
        return None if any(time is None for time in times) else min((t for t in times if t is not None), default=None)

    def snapshot(self, checkpoint: int) -> OperatorSnapshot:
        """A source without event time keeps none: it may get it later, from any column."""
        timed = self._strategy is not None
        with calling(self._context.uid, self._context.subtask.index, self._source, "position"):
            splits = {
                s.name: {"position": s.reader.position, "seen_ms": s.seen_ms if timed else None} for s in self._splits
            }
        self._told[checkpoint] = {name: state["position"] for name, state in splits.items()}
        finished = dict(self._finished) if timed else dict.fromkeys(self._finished)
        watermark = self._reached_ms if timed else MIN_WATERMARK
        inline = {"splits": splits, "finished": finished, "watermark": watermark}
        if self._generates:
            inline |= self._generated_state()
        if (found := self._discovery.state) is not None:
            inline["discovery"] = found
        return OperatorSnapshot(inline=inline)

    def _generated_state(self) -> dict[str, Any]:
        """Returns the watermarks of all splits, and what the generators of those that are read want to be kept."""
        made = {split.name: split.generated for split in self._splits if split.generated is not None}
        reached = {name: of.reached_ms for name, of in made.items()} | self._finished_watermarks
        states = {name: of.state() for name, of in made.items()}
        return {"generated": reached, "generators": {name: of for name, of in states.items() if of is not None}}

    def on_complete(self, checkpoint: int) -> None:
        """Tells the discovery how far its splits were read at the barrier of a checkpoint that is complete."""
        positions = self._told.get(checkpoint)
        self._told = {later: of for later, of in self._told.items() if later > checkpoint}
        if positions is not None:
            with calling(self._context.uid, self._context.subtask.index, self._source, "completed()"):
                self._discovery.completed(positions)

    def on_abort(self, checkpoint: int) -> None:
        self._told.pop(checkpoint, None)

    def close(self) -> None:
        close_all([*(split.reader.close for split in self._splits), self._discovery.close])


def _later(one_ms: int | None, other_ms: int | None) -> int | None:
    return max((time for time in (one_ms, other_ms) if time is not None), default=None)
