"""Sources that are aligned: none is read further ahead of the slowest of its group than the group allows.

Topology: one or two sources whose splits are in order and far apart in event time, united, in front of a table; the
subtasks of two slots hear of each other through the JobMaster. Faults: crashes, rescales and restores while splits
wait. Checks: at every single read, against a model that sees all splits at once, that the split which is read is not
ahead of the slowest by more than the drift; that every record comes out once; that the job ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import (
    FixedDelay,
    MapFunction,
    RuntimeContext,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
)
from engine.cli.liveview import alignment_line
from engine.connectors.table import TableSink
from engine.core.functions import Row
from engine.core.sources import Discovery, Source, SourceContext, SplitReader
from engine.jobmaster.status import describe_vertex
from engine.protocol.messages import Heartbeat
from engine.protocol.savepoint import StopRequest
from engine.protocol.signals import MIN_WATERMARK
from engine.testing import Checkpoint, Crash, Item, ListSource, LocalRun, Scaling, run
from engine.testing import Wait as Pause
from tests.three_ways import three_ways

DRIFT_MS, EVERY_MS = 100, 5
HEARD_MS = 6
"""So long after a split has appeared the others may not know of it: a report, an announcement, and their next turn."""


@dataclass
class Model:
    """Sees all splits of a run. A split is a list of times that appears at a moment."""

    drift_ms: int = DRIFT_MS
    readers: dict[str, _Reader] = field(default_factory=dict)
    read: list[tuple[str, int]] = field(default_factory=list)

    def check(self, now: _Reader, clock_ms: float) -> None:
        """Checks that the split which is read now may be read."""
        known = [r for r in self.readers.values() if not r.finished and clock_ms - r.opened_ms > HEARD_MS]
        slowest = min((r.watermark for r in known), default=now.watermark)
        assert now.watermark <= slowest + self.drift_ms, f"{now.name} at {now.watermark}, the slowest at {slowest}"


@dataclass
class Appearing(Source):
    """A source whose splits appear while it runs, (when, times) each. A subtask without a split is idle."""

    model: Model
    name: str
    splits: Sequence[tuple[int, Sequence[int | None]]]

    @property
    def max_parallelism(self) -> int:
        return len(self.splits)

    def discovery(self, context: SourceContext, known: Sequence[str]) -> Discovery:
        return _Appears(self.splits, context)

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        name = f"{self.name}-{split}"
        reader = _Reader(self.model, name, self.splits[int(split)][1], position or 0, context)
        self.model.readers[name] = reader
        return reader


class _Appears(Discovery):
    def __init__(self, splits: Sequence[tuple[int, Sequence[int | None]]], context: SourceContext) -> None:
        own = range(context.subtask, len(splits), context.parallelism)
        self._left = sorted((splits[index][0], str(index)) for index in own)
        self._clock = context.clock

    def poll(self) -> list[str]:
        found = [name for when, name in self._left if when <= self._clock.now_ms()]
        self._left = [(when, name) for when, name in self._left if name not in found]
        return found

    @property
    def ready(self) -> bool:
        return True

    @property
    def finished(self) -> bool:
        return not self._left

    @property
    def wakeup_ms(self) -> float | None:
        return self._left[0][0] if self._left else None


class _Reader(SplitReader):
    """Gives one record at a time, so that the drift can be checked to the millisecond."""

    def __init__(
        self, model: Model, name: str, times: Sequence[int | None], position: int, context: SourceContext
    ) -> None:
        self.name, self.opened_ms = name, context.clock.now_ms()
        self._model, self._times, self._position = model, times, position
        self._clock, self._schema = context.clock, context.schema

    @property
    def watermark(self) -> int:
        seen = [time for time in self._times[: self._position] if time is not None]
        return max(seen) - 1 if seen else MIN_WATERMARK

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        self._model.check(self, self._clock.now_ms())
        time = self._times[self._position]
        row = {"split": self.name, "n": self._position, "ts": time}
        self._position += 1
        self._model.read.append((self.name, row["n"]))
        return pa.RecordBatch.from_pylist([row], schema=self._schema)

    @property
    def position(self) -> int:
        return self._position

    @property
    def finished(self) -> bool:
        return self._position >= len(self._times)


SCHEMA = "split string, n long, ts long"
STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
ALIGNED = STRATEGY.with_watermark_alignment("all", DRIFT_MS, EVERY_MS)
Job = Callable[[StreamEnvironment], None]


class Slowly(MapFunction):
    """Passes records on."""

    def open(self, context: RuntimeContext) -> None:
        self._index = context.subtask_index

    def map(self, value: Row) -> Row:
        return value


def job_of(*sources: Source, strategy: WatermarkStrategy = ALIGNED, interval: str | None = None) -> Job:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing(interval)
        env.set_restart_strategy(FixedDelay(attempts=20, delay_ms=5))
        streams = [
            env.from_source(source, SCHEMA, uid=f"source{number}").assign_timestamps_and_watermarks(strategy)
            for number, source in enumerate(sources)
        ]
        united = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
        united.map(Slowly(), uid="slowly").sink_to(TableSink("out"), uid="out")

    return job


def rows_of(ran: LocalRun) -> list[tuple[str, int]]:
    return sorted((row["split"], row["n"]) for row in ran.rows("out"))


def all_rows(*sources: Appearing) -> list[tuple[str, int]]:
    return sorted(
        (f"{source.name}-{index}", n)
        for source in sources
        for index, (_, times) in enumerate(source.splits)
        for n in range(len(times))
    )


def steps(first: int, last: int, by: int) -> list[int | None]:
    return list(range(first, last, by))


# --- bounded drift ---


@pytest.mark.promise("B9")
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_no_split_is_read_further_ahead_than_the_drift(parallelism: int) -> None:
    model = Model()
    fast = Appearing(model, "fast", [(0, steps(0, 4000, 40)), (0, steps(2000, 6000, 40))])
    slow = Appearing(model, "slow", [(0, steps(0, 6000, 60))])
    ran = run(job_of(fast, slow), parallelism=parallelism)
    assert rows_of(ran) == all_rows(fast, slow)


def test_without_alignment_the_model_sees_the_drift() -> None:
    """The check can fail."""
    model = Model()
    fast = Appearing(model, "fast", [(0, steps(0, 4000, 40)), (0, steps(2000, 6000, 40))])
    with pytest.raises(AssertionError, match="the slowest at"):
        run(job_of(fast, strategy=STRATEGY))


SPLIT = st.tuples(
    st.integers(0, 60), st.lists(st.none() | st.integers(0, 900), max_size=12).map(lambda times: sorted_times(times))
)


def sorted_times(times: list[int | None]) -> list[int | None]:
    """Returns the times in order, with some nulls between them."""
    ordered = iter(sorted(time for time in times if time is not None))
    return [None if time is None else next(ordered) for time in times]


@pytest.mark.promise("B9")
@given(st.lists(st.lists(SPLIT, min_size=1, max_size=3), min_size=1, max_size=3), st.integers(1, 3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_random_sources_stay_together_lose_nothing_and_come_to_their_end(
    splits: list[list[tuple[int, list[int | None]]]], parallelism: int, checkpoints: bool
) -> None:
    model = Model()
    sources = [Appearing(model, f"s{number}", of) for number, of in enumerate(splits)]
    ran = run(job_of(*sources, interval="20 ms" if checkpoints else None), parallelism=parallelism)
    assert rows_of(ran) == all_rows(*sources)


# --- idle, finished, late ---


@pytest.mark.promise("B9", "B2")
def test_a_source_that_is_idle_or_finished_holds_nobody_back() -> None:
    model = Model()
    fast = Appearing(model, "fast", [(0, steps(0, 9000, 30))])
    idle = Appearing(model, "idle", [(0, [0]), (100_000, [5])])
    ran = run(job_of(fast, idle), parallelism=2, until=lambda ran: "fast-0" in model.readers and _done(model, "fast-0"))
    assert ran.now_ms() < 50_000, "the fast one waited for a split that had not appeared"
    assert _done(model, "idle-0")


def _done(model: Model, name: str) -> bool:
    return model.readers[name].finished


@pytest.mark.promise("B9")
def test_a_source_that_wakes_up_with_old_records_is_waited_for() -> None:
    model = Model()
    fast = Appearing(model, "fast", [(0, steps(0, 9000, 10))])
    backfill = Appearing(model, "old", [(0, [0]), (200, steps(0, 300, 10))])
    ran = run(job_of(fast, backfill), parallelism=2)
    assert rows_of(ran) == all_rows(fast, backfill)
    first_old = model.read.index(("old-1", 0))
    last_old = model.read.index(("old-1", 29))
    between = [name for name, _ in model.read[first_old:last_old] if name == "fast-0"]
    assert len(between) <= HEARD_MS + 1, "the fast source read on while it should have waited"


# --- checkpoints, crashes, rescales, stops, while a split waits ---


def held_back() -> tuple[Model, Appearing, Appearing]:
    """Returns two sources of which the second has nothing for a while, and then lets the first one go on."""
    model = Model()
    return (
        model,
        Appearing(model, "fast", [(0, steps(0, 3000, 50)), (0, steps(1500, 4500, 50))]),
        Appearing(model, "slow", [(0, steps(0, 3000, 100)), (0, [0])]),
    )


def waiting(ran: LocalRun) -> bool:
    return any(totals.waits for slot in ran.slots for totals in slot.runtime.totals().values())


@pytest.mark.promise("B9", "D5")
def test_checkpoints_complete_while_a_split_waits() -> None:
    _, fast, slow = held_back()
    ran = run(job_of(fast, slow, interval="10 ms"), parallelism=2, until=lambda ran: ran.epochs > 2 and waiting(ran))
    before = ran.epochs
    ran.run(until=lambda: ran.epochs > before)
    assert waiting(ran)
    assert rows_of(ran.run()) == all_rows(fast, slow)


@pytest.mark.promise("B9", "D7")
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_job_that_is_restored_while_a_split_waits_goes_on(parallelism: int) -> None:
    model, fast, slow = held_back()
    job = job_of(fast, slow, interval="10 ms")
    first = run(job, parallelism=2, until=lambda ran: ran.epochs > 3 and waiting(ran))
    assert not all(reader.finished for reader in model.readers.values())
    last = run(job, parallelism=parallelism, after=first)
    assert rows_of(last) == all_rows(fast, slow)


@pytest.mark.promise("B9", "D7")
def test_a_job_is_rescaled_while_a_split_waits() -> None:
    _, fast, slow = held_back()
    ran = run(job_of(fast, slow, interval="10 ms"), parallelism=2, until=lambda ran: ran.epochs > 3 and waiting(ran))
    ran.rescale(Scaling(1))
    ran.run()
    assert [type(event).__name__ for event in ran.rescales] == ["Rescaled"]
    assert rows_of(ran) == all_rows(fast, slow)


@pytest.mark.promise("B9", "D6")
@pytest.mark.parametrize("drain", [False, True])
def test_a_job_stops_while_a_split_waits(drain: bool) -> None:
    _, fast, slow = held_back()
    job = job_of(fast, slow, interval="10 ms")
    ran = run(job, parallelism=2, until=lambda ran: ran.epochs > 3 and waiting(ran))
    refused, actions = ran.master.stop(StopRequest(drain=drain), ran.now_ms())
    assert refused is None
    ran.carry_out(actions)
    ran.run()
    read = rows_of(ran)
    assert len(read) == len(set(read)) < len(all_rows(fast, slow))
    if not drain:
        assert rows_of(run(job, parallelism=3, after=ran)) == all_rows(fast, slow)


# --- three ways, and the effect ---


def items(times: Sequence[int]) -> list[Item]:
    return [{"split": "list", "n": n, "ts": time} for n, time in enumerate(times)]


def windows(env: StreamEnvironment, fast: ListSource, slow: ListSource) -> None:
    env.enable_checkpointing("1 min")
    streams = [
        env.from_source(source, SCHEMA, uid=uid).assign_timestamps_and_watermarks(ALIGNED)
        for uid, source in (("fast", fast), ("slow", slow))
    ]
    counted = streams[0].union(streams[1]).key_by("split").window(TumblingEventTimeWindows.of(500))
    counted.aggregate(n=count(), uid="windows").sink_to(TableSink("out"), uid="out")


@pytest.mark.promise("B9", "B4")
def test_aligned_windows_are_the_same_plain_wider_and_crashed() -> None:
    rows = three_ways(windows, items(range(2000, 8000, 100)), items(range(0, 6000, 200)))["out"]
    assert sum(row["n"] for row in rows) == 60 + 30


@pytest.mark.promise("B9")
def test_a_crash_of_the_source_that_is_waited_for_lets_the_other_one_go_on() -> None:
    slow: list[Item] = [*items(range(0, 1000, 100)), Checkpoint(), Crash(), *items(range(1000, 4000, 100))]
    fast: list[Item] = [*items(range(0, 4000, 20))]
    ran = run(job_of(ListSource(fast), ListSource(slow)), parallelism=2)
    assert ran.restarts == 1 and len(ran.rows("out")) == 200 + 40


@pytest.mark.promise("B9")
def test_a_source_that_is_slow_and_not_idle_is_waited_for() -> None:
    slow: list[Item] = [*items([0, 50]), Pause("10 min"), *items([100, 150])]
    ran = run(
        job_of(ListSource(items(range(0, 300, 10))), ListSource(slow)), parallelism=2, until=lambda ran: waits(ran)
    )
    ran.run(until=lambda: ran.now_ms() > 60_000)
    assert waits(ran), "it waits as long as it takes, and nobody takes it for stuck"
    ran.run()
    assert len(ran.rows("out")) == 30 + 4 and ran.restarts == 0


def waits(ran: LocalRun) -> bool:
    return any(totals.waits and totals.waits.drift_ms for s in ran.slots for totals in s.runtime.totals().values())


# --- what is seen from outside ---


@pytest.mark.promise("B9", "F3")
def test_the_status_says_who_waits_and_how_far_it_is_ahead() -> None:
    _, fast, slow = held_back()
    ran = run(job_of(fast, slow), parallelism=2, until=waits)
    for slot in ran.slots:
        ran.carry_out(ran.master.on_message(slot.session, Heartbeat(slot.runtime.totals()), ran.now_ms()))
    shown = describe_vertex(ran.master, "source0", ran.wall_ms())
    found = [subtask.waits for subtask in shown.subtasks if subtask.waits is not None]
    assert found and all(wait.group == "all" and wait.max_drift_ms == DRIFT_MS for wait in found)
    assert max(wait.drift_ms or 0 for wait in found) > DRIFT_MS
    line = alignment_line(shown)
    assert line.startswith("source0 is waiting for alignment: ")
    assert line.endswith("ahead of the slowest of group 'all' (allowed: 100 ms)")
