"""Small jobs written with the real API, and an oracle in plain Python that knows what their tables must hold.

The oracle shares no code with the engine. It computes record n from n, and derives from the positions of the sources in
a manifest exactly which records an epoch must contain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from engine.api import (
    BroadcastContext,
    CheckpointConfig,
    CheckpointingMode,
    DataStream,
    EventTimeSessionWindows,
    ExponentialDelay,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessContext,
    ReadOnlyBroadcastContext,
    RuntimeContext,
    SlidingEventTimeWindows,
    StreamEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    count,
    total,
)
from engine.api.windows import WindowAssigner
from engine.connectors.generator import Columns, GeneratorSource
from engine.connectors.table import TableSink
from engine.core.functions import Row
from engine.core.gates import Gate
from engine.core.sources import Source
from engine.graph.job_graph import JobGraph
from engine.graph.scalable import ScalableJob
from engine.protocol.scaling import Scaling
from engine.state.key_hash import hash_columns
from tests.simulation import detected, generated, joined, late_windows, sessions, timed
from tests.simulation.drifting import aligned
from tests.simulation.folder import Folder
from tests.simulation.store import RECENT_MS
from tests.simulation.world import Violation

BASE_MS = 1_000_000
STEP_MS = 16
JITTER_MS = 30
WINDOW_MS = 160
LATE_MS = 300
IDLE_FILES, IDLE_EVERY_MS = 8, 3
IDLE_TURNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""The order in which the files of the kind "idle" appear: those of two subtasks (0 to 3 and 4 to 7) take turns."""
IDLE_ORDER = np.array([2, 4, 6, 7, 0, 1, 3, 5])
"""The place of each of these files in time: the second subtask is behind the first."""
FOLD_MB, KEEP_MS = 128, 1.25 * RECENT_MS
"""Files that were folded are kept for longer than a list may lack a new file, which `TableFolder` relies on."""
RESTART = ExponentialDelay(initial_ms=4, max_ms=30, multiplier=1.5)

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class JobSpec:
    """Describes one job.

    `kind`: windows (no record is late), late (some are), idle (late ones, in files that follow each other in time and
    appear out of order, so that sources are idle at different times), process (two tables), reduce, copy (one vertex),
    buffered (operator list state, split and union), rules (two inputs, broadcast and keyed state), timers (two keyed
    inputs, timers of both kinds; tests/simulation/timed.py), joined (an interval join; tests/simulation/joined.py),
    sessions (session windows with a trigger and a function; tests/simulation/sessions.py),
    pattern (tests/simulation/detected.py; exactly once only).
    `exchange`: the exchange behind the source; empty: none. `own_slots`: the operators behind the exchange are in a
    slot sharing group of their own. `folder`: the source finds its splits while it runs, and is idle in between.
    `beside`: windows only; a table of the source's records is written before event time is assigned to the source.
    `rescaled`: the parallelism of every JobMaster after the first, if it differs. `slide_ms`: windows overlap if it is
    shorter than they are. `folded`: the small files of its tables are folded. `gap_ms`: windows are sessions with this
    gap. `lateness_ms`: windows are kept for so long, and late records have a table of their own (late_windows.py).
    `drift_ms`: all sources with event time are aligned to it (drifting.py). `generated`: a generator makes the
    watermarks of the source, called with "records" or "batches" (generated.py). `gate`: that of each table (gates.py).
    `aggregated`: sessions only; built-in aggregates in place of a function.
    """

    kind: str
    parallelism: int
    splits: int
    rows: int
    batch_rows: int
    keys: int = 3
    exchange: str = ""
    own_slots: bool = False
    folder: bool = False
    beside: bool = False
    rescaled: int | None = None
    slide_ms: int = WINDOW_MS
    folded: bool = False
    gap_ms: int = 0
    lateness_ms: int | None = None
    drift_ms: int | None = None
    generated: str = ""
    gate: Gate | None = None
    aggregated: bool = False

    def sink(self, table: str) -> TableSink:
        return TableSink(table, fold_mb=FOLD_MB if self.folded else None, keep_replaced=int(KEEP_MS), gate=self.gate)

    @property
    def tables(self) -> tuple[str, ...]:
        if self.lateness_ms is not None:
            return ("out", "late")
        if self.beside:
            return ("out", "beside")
        return ("raw", "counts") if self.kind == "process" else ("out",)

    @property
    def copies(self) -> int:
        """How often each record is in the output."""
        return self.parallelism if self.exchange == "broadcast" else 1


WINDOWED = ("windows", "late", "idle")
OPERATOR_STATE = ("buffered", "rules")
TIMERS, SESSIONS = "timers", "sessions"
JOINED = "joined"
PATTERN = "pattern"
FOLDER_KINDS = ("late", "process", "reduce", "copy", *OPERATOR_STATE)
"""Not "windows": a file that appears late holds late records, and that kind has none."""
EXCHANGES = ("forward", "shuffle", "rebalance", "rescale", "broadcast", "global_", "partition_custom")


# --- record n, as the engine computes it and as the oracle does ---


def _columns(spec: JobSpec, n: np.ndarray) -> dict[str, Any]:
    step = IDLE_ORDER[n % IDLE_FILES] * (spec.rows // IDLE_FILES) + n // IDLE_FILES if spec.kind == "idle" else n
    stamps = BASE_MS + step * STEP_MS + (n * 2_654_435_761 >> 7) % JITTER_MS
    if spec.kind == "late":
        stamps = np.where(n % 5 == 4, stamps - LATE_MS, stamps)
    keys = np.array([f"k{i}" for i in range(spec.keys)])[n * 7 % spec.keys]
    return {"n": n, "key": pa.array(keys.tolist(), pa.string()), "v": n % 10 + 1, "ts": stamps * 1000}


def digest_of(spec: JobSpec, of: Sequence[int]) -> int:
    """Returns the digest of these records at the source."""
    if not of:
        return 0
    hashes = hash_columns([pa.array(column) for column in _columns(spec, np.array(of)).values()])
    return int(np.add.reduce(hashes))


def key_of(spec: JobSpec, n: int) -> str:
    return f"k{n * 7 % spec.keys}"


def value_of(n: int) -> int:
    return n % 10 + 1


def stamp_of(spec: JobSpec, n: int) -> int:
    step = n
    if spec.kind == "idle":
        step = int(IDLE_ORDER[n % IDLE_FILES]) * (spec.rows // IDLE_FILES) + n // IDLE_FILES
    stamp = BASE_MS + step * STEP_MS + (n * 2_654_435_761 >> 7) % JITTER_MS
    return stamp - LATE_MS if spec.kind == "late" and n % 5 == 4 else stamp


def numbers(splits: int, positions: Mapping[str, int]) -> list[int]:
    """Returns the numbers of the records below these positions."""
    return [int(split) + splits * i for split, end in sorted(positions.items()) for i in range(end)]


def all_positions(splits: int, rows: int) -> dict[str, int]:
    return {str(s): (rows - s + splits - 1) // splits for s in range(splits)}


# --- the jobs ---


@dataclass
class UserFault:
    """Makes the user's function raise once, after `calls_left` calls; each run sets it."""

    calls_left: int | None = None
    raised: int = 0


USER_FAULT = UserFault()


class Tag(MapFunction):
    def map(self, value: Row) -> Row:
        if USER_FAULT.calls_left is not None:
            USER_FAULT.calls_left -= 1
            if USER_FAULT.calls_left < 0:
                USER_FAULT.calls_left = None
                USER_FAULT.raised += 1
                raise RuntimeError("simulated fault of the user's function")
        return {"n": value["n"], "key": value["key"], "v": value["v"]}


class CountPerKey(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self._seen = context.get_state(ValueStateDescriptor("seen", pa.int64()))

    def process_element(self, value: Row, context: ProcessContext) -> list[Row]:
        seen = (self._seen.value() or 0) + 1
        self._seen.update(seen)
        return [{"n": value["n"], "key": value["key"], "seq": seen}]


BUFFER, LOST = 4, -1
RULES, RULE_SPLITS = 9, 2
RECORD = pa.struct([("n", pa.int64()), ("key", pa.string()), ("subtask", pa.int64()), ("seq", pa.int64())])
RECORD_SCHEMA = "n long, key string, subtask long, seq long"
RULE_STATE = MapStateDescriptor("rules", pa.int64(), pa.int64())


class Buffer(FlatMapFunction):
    """Holds records back until it has a few (split list state), and numbers them; each subtask has a line of numbers.

    A restored subtask goes on with the line of the next subtask, which it finds in union list state. At a higher
    parallelism there are subtasks without a line, and each begins one. A line that was written and not found is LOST.
    """

    def open(self, context: RuntimeContext) -> None:
        store = context.get_operator_state_store()
        self._held = store.get_list_state(ListStateDescriptor("held", RECORD))
        self._lines = store.get_union_list_state(ListStateDescriptor("lines", pa.list_(pa.int64())))
        self._records = self._held.get()
        lines = {index: (line, seq) for index, line, seq, *_ in self._lines.get()}
        highest = max((highest for *_, highest, _ in self._lines.get()), default=-1)  # of all lines there ever were
        written = max((parallelism for *_, parallelism in self._lines.get()), default=0)
        self._index, self._parallelism = context.subtask_index, context.parallelism
        following = (self._index + 1) % self._parallelism
        new = (LOST if following < written else highest + 1 + self._index, 0)
        self._line, self._seq = lines.get(following, new)
        self._highest = highest + self._parallelism

    def flat_map(self, value: Row) -> list[Row]:
        self._seq += 1
        self._records.append({"n": value["n"], "key": value["key"], "subtask": self._line, "seq": self._seq})
        if len(self._records) < BUFFER:
            return []
        ready, self._records = self._records, []
        return ready

    def snapshot_state(self, checkpoint: int) -> None:
        self._held.update(self._records)
        self._lines.update([[self._index, self._line, self._seq, self._highest, self._parallelism]])


class ApplyRules(KeyedBroadcastProcessFunction):
    """Counts the records per key, and in each subtask the rules in its broadcast state."""

    def open(self, context: RuntimeContext) -> None:
        self._index = context.subtask_index
        self._seen = context.get_state(ValueStateDescriptor("seen", pa.int64()))

    def process_element(self, value: Row, context: ReadOnlyBroadcastContext) -> list[Row]:
        seen = (self._seen.value() or 0) + 1
        self._seen.update(seen)
        return [{"n": value["n"], "key": value["key"], "subtask": -1, "seq": seen}]

    def process_broadcast_element(self, value: Row, context: BroadcastContext) -> list[Row]:
        rules = context.get_broadcast_state(RULE_STATE)
        rules.put(value["rule"], value["rule"] * 10)
        return [{"n": value["rule"], "key": "", "subtask": self._index, "seq": len(rules)}]


def _exchanged(spec: JobSpec, stream: DataStream) -> DataStream:
    if spec.exchange == "partition_custom":
        return stream.partition_custom(lambda key, partitions: int(key[1:]) % partitions, "key")
    return getattr(stream, spec.exchange)() if spec.exchange else stream


def _placed(spec: JobSpec, stream: DataStream) -> DataStream:
    return stream.slot_sharing_group("own") if spec.own_slots else stream


def _source(spec: JobSpec, make: Callable[[np.ndarray], Columns]) -> Source:
    if spec.kind == "idle":
        return Folder(make, spec.rows, IDLE_TURNS, IDLE_EVERY_MS)
    return Folder(make, spec.rows) if spec.folder else GeneratorSource(make, splits=spec.splits, rows=spec.rows)


def _define(spec: JobSpec, env: StreamEnvironment) -> None:
    def make(n: np.ndarray) -> Columns:
        return _columns(spec, n)

    source = _source(spec, make)
    stream = env.from_source(source, schema="n long, key string, v long, ts timestamp", uid="source", digest=True)
    if spec.kind in ("process", "reduce", "copy", *OPERATOR_STATE):
        tagged = _placed(spec, _exchanged(spec, stream).map(Tag(), schema="n long, key string, v long"))
    if spec.kind == "process":
        tagged.sink_to(spec.sink("raw"), uid="raw")
        counted = tagged.key_by("key").process(CountPerKey(), uid="count", schema="n long, key string, seq long")
        counted.sink_to(spec.sink("counts"), uid="counts")
        return
    if spec.kind == "buffered":
        tagged.flat_map(Buffer(), RECORD_SCHEMA, uid="buffer").sink_to(spec.sink("out"), uid="out")
        return
    if spec.kind == "rules":
        rules = env.from_source(
            GeneratorSource(lambda n: {"rule": n}, rows=RULES, splits=RULE_SPLITS), "rule long", uid="rules"
        )
        connected = tagged.key_by("key").connect(rules.broadcast(RULE_STATE))
        connected.process(ApplyRules(), uid="apply", schema=RECORD_SCHEMA).sink_to(spec.sink("out"), uid="out")
        return
    if spec.kind == "reduce":
        tagged.key_by("key").sum("v", uid="sum").sink_to(spec.sink("out"), uid="out")
        return
    if spec.kind == "copy":
        tagged.sink_to(spec.sink("out"), uid="out")
        return
    bound_ms = JITTER_MS + STEP_MS if spec.kind in ("windows", SESSIONS, PATTERN) else JITTER_MS
    strategy = aligned(generated.strategy_of(spec.generated, bound_ms).with_timestamps("ts"), spec.drift_ms)
    if spec.beside:
        stream.filter(lambda row: True).sink_to(spec.sink("beside"), uid="beside")
    stamped = stream.assign_timestamps_and_watermarks(strategy)
    if spec.exchange or spec.own_slots:
        stamped = _placed(spec, _exchanged(spec, stamped).map_batches(lambda batch: batch))
    if spec.kind == TIMERS:
        timed.define(env, stamped, spec.keys, BASE_MS, spec.sink("out"), spec.drift_ms)
        return
    if spec.kind == PATTERN:
        detected.define(stamped, spec.sink("out"))
        return
    if spec.kind == JOINED:
        joined.define(env, stamped, spec.keys, BASE_MS, spec.sink("out"), spec.drift_ms)
        return
    if spec.kind == SESSIONS:
        sessions.define(stamped, spec.sink("out"), spec.aggregated)
        return
    windowed = stamped.key_by("key").window(_windows(spec))
    if spec.lateness_ms is not None:
        windowed = windowed.allowed_lateness(spec.lateness_ms).side_output_late_data(late_windows.LATE)
    results = windowed.aggregate(pv=count(), v=total("v"), uid="pv")
    results.sink_to(spec.sink("out"), uid="out")
    if spec.lateness_ms is not None:
        results.get_side_output(late_windows.LATE).sink_to(spec.sink("late"), uid="late")


def _windows(spec: JobSpec) -> WindowAssigner:
    if spec.gap_ms:
        return EventTimeSessionWindows.with_gap(spec.gap_ms)
    if spec.slide_ms == WINDOW_MS:
        return TumblingEventTimeWindows.of(WINDOW_MS)
    return SlidingEventTimeWindows.of(WINDOW_MS, spec.slide_ms)


_GRAPHS: dict[tuple[JobSpec, int], JobGraph] = {}
_JOBS: dict[tuple[JobSpec, int], ScalableJob] = {}


def graph_of(spec: JobSpec, process: int, checkpoints: CheckpointConfig) -> JobGraph:
    """Returns the graph of one process. Each has its own, as user functions hold state; graphs are cached over runs."""
    graph = _GRAPHS.get((spec, process))
    if graph is None:
        graph = _GRAPHS[spec, process] = job_of(spec, process, CheckpointConfig()).at(Scaling())
    return replace(graph, checkpoints=checkpoints)


def job_of(spec: JobSpec, process: int, checkpoints: CheckpointConfig) -> ScalableJob:
    """Returns the job of one process, at any parallelism."""
    job = _JOBS.get((spec, process))
    if job is None:
        env = StreamEnvironment(parallelism=spec.parallelism)
        _define(spec, env)
        job = _JOBS[spec, process] = ScalableJob(env.graph, "job", CheckpointConfig(), RESTART, 16, "simulated")
    return replace(job, checkpoints=checkpoints)


# --- the oracle ---


@dataclass
class Seen:
    """The rows published so far, and the contents of the newest manifest.

    The manifest gives the positions, the rows in panes, the late rows, and the records that an operator holds back.
    """

    tables: dict[str, Rows]
    positions: dict[str, int] = field(default_factory=dict)
    pane_rows: int = 0
    late_rows: int = 0
    rules: dict[str, int] = field(default_factory=dict)
    held: Rows = field(default_factory=list)
    waiting: dict[str, list[int]] = field(default_factory=dict)  # records that wait for a timer or window, by state
    unpaired: int = 0  # rows that a join keeps


class Oracle:
    def __init__(self, spec: JobSpec, mode: CheckpointingMode) -> None:
        self.spec = spec
        self.exactly_once = mode is CheckpointingMode.EXACTLY_ONCE

    def check_cut(self, seen: Seen) -> None:
        """Checks that the published rows are exactly the results of the records below the sources' positions."""
        due = numbers(self.spec.splits, seen.positions) * self.spec.copies
        if self.spec.kind == TIMERS:
            marks = numbers(timed.MARK_SPLITS, seen.rules)
            timed.check(seen.tables["out"], seen.waiting, due, marks, self._each_once, self.exactly_once)
            return
        if self.spec.kind == PATTERN:
            of = partial(key_of, self.spec), partial(stamp_of, self.spec)
            detected.check(seen.tables["out"], seen.waiting, due, *of)
            return
        if self.spec.kind == JOINED:
            self._joined(due, seen)
            return
        if self.spec.kind == SESSIONS:
            sessions.check(seen.tables["out"], seen.waiting.get(sessions.CONTENTS, []), due, self._each_once)
            return
        if self.spec.gap_ms or self.spec.lateness_ms is not None:
            late_windows.check(self._records_of(due), seen.tables, self.spec.gap_ms, seen.pane_rows, seen.late_rows)
            return
        if self.spec.kind in WINDOWED:
            self._windows_unique(seen.tables["out"])
            self._accounted(len(due), seen)
            if self.spec.beside:
                read = numbers(self.spec.splits, seen.positions)
                self._each_once("beside", read, [row[0] for row in seen.tables["beside"]])
            return
        if self.spec.kind == "rules":
            self._rules(seen)
        rows = {table: self._records(table, seen) for table in self.spec.tables}
        for table in self.spec.tables:
            self._each_once(table, due, [row[0] for row in rows[table]])
        if self.exactly_once and self.spec.kind != "copy":
            self._running(rows)

    def check_final(self, seen: Seen) -> None:
        everything = {"source": all_positions(self.spec.splits, self.spec.rows)}
        if self.spec.kind == "rules":
            everything["rules"] = all_positions(RULE_SPLITS, RULES)
        if self.spec.kind in (TIMERS, JOINED):
            marks = timed.MARKS if self.spec.kind == TIMERS else joined.MARKS
            everything["rules"] = all_positions(timed.MARK_SPLITS, marks)
        for source, found in (("source", seen.positions), ("rules", seen.rules)):
            if found != everything.get(source, {}):
                raise Violation("no_loss", f"finished at {found} of {everything[source]} of {source}")
        self.check_cut(seen)
        if self.spec.gap_ms or self.spec.lateness_ms is not None:
            everything_read = self._records_of(range(self.spec.rows))
            width_ms = self.spec.gap_ms or WINDOW_MS
            no_late = self.spec.kind == "windows"
            late_windows.check_final(everything_read, seen.tables, width_ms, bool(self.spec.gap_ms), no_late)
        elif self.spec.kind in WINDOWED:
            self._final_windows(seen)
        if self.spec.kind == TIMERS:
            timed.check_final(seen.waiting)
        if self.spec.kind == PATTERN:
            detected.check_final(seen.waiting)
        if self.spec.kind == JOINED:
            joined.check_final(seen.unpaired)
        if self.spec.kind == SESSIONS and self.exactly_once:
            held = seen.waiting.get(sessions.CONTENTS, [])
            spec = self.spec
            sessions.check_final(seen.tables["out"], held, partial(key_of, spec), partial(stamp_of, spec))

    def _joined(self, due: Sequence[int], seen: Seen) -> None:
        marks = numbers(timed.MARK_SPLITS, seen.rules)
        joined.check(
            seen.tables["out"],
            [(n, key_of(self.spec, n), stamp_of(self.spec, n)) for n in due],
            [(n, f"k{n % self.spec.keys}", BASE_MS + n * joined.MARK_STEP_MS) for n in marks],
            # With at least once, the watermark may have passed a record that is read again: it is in the state already.
            seen.late_rows if self.exactly_once else 0,
            self._each_once,
        )

    def _records_of(self, due: Sequence[int]) -> list[late_windows.Record]:
        return [late_windows.Record(n, key_of(self.spec, n), stamp_of(self.spec, n), value_of(n)) for n in due]

    # --- per record ---

    def _each_once(self, table: str, due: Sequence[int], got: Sequence[int]) -> None:
        want, have = Counter(due), Counter(got)
        lost = sorted((want - have).elements())
        if lost:
            raise Violation("no_loss", f"table {table} lacks the records {lost[:10]} ({len(lost)})")
        more = sorted((have - want).elements())
        if not self.exactly_once:
            return
        doubled = [n for n in more if n in want]
        if doubled:
            raise Violation("no_duplicate", f"table {table} has {doubled[:10]} more than once ({len(doubled)})")
        if more:
            raise Violation("no_phantom", f"table {table} has {more[:10]}, which lie behind the barrier ({len(more)})")

    def _records(self, table: str, seen: Seen) -> Rows:
        """Returns the records published or held back by an operator, without the output of rules."""
        return [row for row in seen.tables[table] if self.spec.kind != "rules" or row[2] < 0] + seen.held

    def _rules(self, seen: Seen) -> None:
        """Checks that each subtask got each rule, and found all of its earlier rules in its state."""
        rules = sorted(numbers(RULE_SPLITS, seen.rules))
        made = [row for row in seen.tables["out"] if row[2] >= 0]
        for subtask in range(self.spec.parallelism):
            taken = sorted(n for n, _, of, _ in made if of == subtask)
            if taken != rules if self.exactly_once else set(taken) < set(rules):
                raise Violation("no_loss", f"subtask {subtask} took the rules {taken} of {rules}")
            known = sorted(seq for _, _, of, seq in made if of == subtask)
            if self.exactly_once and known != list(range(1, len(rules) + 1)):
                raise Violation("broadcast_state", f"subtask {subtask} knew {known} rules where it took {rules}")

    def _running(self, tables: Mapping[str, Rows]) -> None:
        """Checks that each record raises the running value of its key by exactly its own value."""
        if self.spec.kind == "process":
            rows = [(n, key, seq, 1) for n, key, seq in tables["counts"]]
        elif self.spec.kind == "rules":
            rows = [(n, key, seq, 1) for n, key, _, seq in tables["out"]]
        elif self.spec.kind == "buffered":
            self._numbered(tables["out"])
            return
        else:
            rows = [(n, key, v, value_of(n)) for n, key, v in tables["out"]]
        last: dict[str, int] = {}
        for n, key, running, own in sorted(rows, key=lambda row: (row[1], row[2])):
            if key != key_of(self.spec, n):
                raise Violation("keys", f"record {n} came out with the key {key}")
            if running != last.get(key, 0) + own:
                raise Violation(
                    "state", f"key {key}: {running} follows {last.get(key, 0)} at record {n}, which adds {own}"
                )
            last[key] = running

    def _numbered(self, rows: Rows) -> None:
        """Checks that the records of each line are numbered from 1, without gaps or repetitions."""
        for line in {row[2] for row in rows}:
            if line == LOST:
                raise Violation("operator_state", "a subtask did not find the line of the next one in the united list")
            numbers = sorted(row[3] for row in rows if row[2] == line)
            if numbers != list(range(1, len(numbers) + 1)):
                raise Violation("operator_state", f"the records of line {line} are numbered {numbers}")

    # --- windows ---

    def _windows_unique(self, rows: Rows) -> None:
        twice = [pair for pair, times in Counter((row[0], row[1]) for row in rows).items() if times > 1]
        if twice and self.exactly_once:
            raise Violation("no_reopened_window", f"published twice: {sorted(twice)[:4]}")

    def _accounted(self, due: int, seen: Seen) -> None:
        if self.spec.slide_ms < WINDOW_MS:
            return  # a record is published with each of its windows: only the end tells
        published = sum(row[3] for row in seen.tables["out"])
        found = published + seen.pane_rows + seen.late_rows
        if found < due:
            raise Violation("no_loss", f"{due} records are before the barrier, {found} are accounted for")
        if found > due and self.exactly_once:
            raise Violation("no_duplicate", f"{due} records are before the barrier, {found} are accounted for")

    def _final_windows(self, seen: Seen) -> None:
        got: dict[tuple[str, int], tuple[int, int]] = {}
        for key, start, _, pv, v in seen.tables["out"]:
            held = got.get((key, _ms(start)), (0, 0))
            got[key, _ms(start)] = (held[0] + pv, held[1] + v)
        everything = self._aggregate(range(self.spec.rows), drop=False)
        one_reader = self.spec.splits == 1 and not self.spec.exchange and not self.spec.folder
        if self.exactly_once and (self.spec.kind == "windows" or one_reader):
            want = everything if self.spec.kind == "windows" else self._aggregate(range(self.spec.rows), drop=True)
            if got != want:
                wrong = sorted(pair for pair in got.keys() | want.keys() if got.get(pair) != want.get(pair))
                pair = wrong[0]
                raise Violation("exact_result", f"{len(wrong)} windows, {pair}: {got.get(pair)}, not {want.get(pair)}")
            return
        for pair in got:
            if pair not in everything:
                raise Violation("no_phantom", f"there is no record for {pair}")
            if self.exactly_once and got[pair][0] > everything[pair][0]:
                raise Violation("no_duplicate", f"{pair}: {got[pair][0]} records of {everything[pair][0]}")
        if self.spec.kind == "windows":
            for pair, (pv, _) in everything.items():
                if got.get(pair, (0, 0))[0] < pv:
                    raise Violation("no_loss", f"{pair}: {got.get(pair)} where {pv} records are")

    def _aggregate(self, of: Sequence[int], drop: bool) -> dict[tuple[str, int], tuple[int, int]]:
        """Aggregates windows batch by batch, as a single reader of one split does. `drop`: drops late records."""
        result: dict[tuple[str, int], tuple[int, int]] = {}
        watermark, highest, size = -(2**63), -(2**63), self.spec.batch_rows
        for first in range(0, len(of), size):
            for n in of[first : first + size]:
                stamp, slide = stamp_of(self.spec, n), self.spec.slide_ms
                highest = max(highest, stamp)
                for start in range(stamp - stamp % slide, stamp - WINDOW_MS, -slide):
                    if drop and start + WINDOW_MS - 1 <= watermark:
                        continue
                    pair = (key_of(self.spec, n), start)
                    held = result.get(pair, (0, 0))
                    result[pair] = (held[0] + 1, held[1] + value_of(n))
            watermark = highest - JITTER_MS - 1
        return {pair: (pv * self.spec.copies, v * self.spec.copies) for pair, (pv, v) in result.items()}


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
