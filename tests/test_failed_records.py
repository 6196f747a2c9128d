"""Goal: a record that an operator can't process is left out, and has left nothing behind.

Topology: one operator of each kind that takes single records, with `on_error`. Faults: crashes, a restore at another
parallelism (`three_ways`). Checks: the results are those of a stream without the bad records; each bad record is in
the side output once, with the reason and the author's line, or is counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from engine.api import (
    FAILED,
    AggregateFunction,
    AggregatingStateDescriptor,
    BroadcastProcessFunction,
    CoMapFunction,
    CountTrigger,
    DataStream,
    EventTimeSessionWindows,
    FixedDelay,
    GlobalWindows,
    JobError,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OnTimerContext,
    OutputTag,
    ProcessContext,
    ProcessFunction,
    ProcessWindowFunction,
    PurgingTrigger,
    ReducingStateDescriptor,
    RuntimeContext,
    SlidingEventTimeWindows,
    StreamEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowContext,
    count,
)
from engine.connectors.table import TableSink
from engine.testing import Checkpoint, Crash, Item, JobFailed, ListSource, run
from tests.three_ways import three_ways

SCHEMA = "n long, key string, text string, at timestamp"
SIDE = OutputTag("side", "n long")
RULES = MapStateDescriptor("rules", "string", "long")


def _records() -> list[Item]:
    """Every seventh record has a text that is no number, and every eleventh one that raises later."""
    return [
        {
            "n": n,
            "key": "abc"[n % 3],
            "text": "bad" if n % 7 == 3 else "1000" if n % 11 == 5 else str(n % 5),
            "at": 1_700_000_000_000_000 + n * 250_000,
        }
        for n in range(90)
    ]


def _bad(record: Any) -> bool:
    return record["text"] in ("bad", "1000")


def number(record: dict[str, Any]) -> int:
    """Returns what no record with a bad text has."""
    record["text"] += "0"  # an author's function may change its record, and raise then
    value = int(record["text"]) // 10
    if value == 1000:
        raise ValueError("1000 is too much")
    return value


def _map(stream: DataStream) -> DataStream:
    return stream.map(lambda r: {"n": r["n"], "value": number(r)}, schema="n long, value long")


def _map_to_what_does_not_fit(stream: DataStream) -> DataStream:
    def wrong(record: dict[str, Any]) -> Any:
        return {"n": record["n"], "value": record["text"] if _bad(record) else 1}

    return stream.map(wrong, schema="n long, value long")


def _flat_map(stream: DataStream) -> DataStream:
    def twice(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"n": record["n"]}
        yield {"n": number(record)}

    return stream.flat_map(twice, schema="n long")


def _filter(stream: DataStream) -> DataStream:
    return stream.filter(lambda record: number(dict(record)) > 1)


class Aside(ProcessFunction):
    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        yield SIDE, {"n": value["n"]}
        yield {"n": number(value)}


def _process(stream: DataStream) -> DataStream:
    made = stream.process(Aside(), schema="n long")
    made.get_side_output(SIDE).sink_to(TableSink("side"), uid="side")
    return made


class EveryState(KeyedProcessFunction):
    """Changes a state of each kind, and timers, before it raises."""

    def open(self, context: RuntimeContext) -> None:
        self.value = context.get_state(ValueStateDescriptor("value", "struct<n long, seen array<long>>"))
        self.items = context.get_list_state(ListStateDescriptor("items", "array<long>"))
        self.names = context.get_map_state(MapStateDescriptor("names", "long", "array<long>"))
        self.most = context.get_reducing_state(ReducingStateDescriptor("most", max, "long"))
        self.sums = context.get_aggregating_state(AggregatingStateDescriptor("sums", Total(), "struct<n long>"))

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        held = self.value.value() or {"n": 0, "seen": []}
        held["seen"].append(value["n"])  # in place, and not yet in the state
        for item in self.items.get():
            item.append(value["n"])
        self.items.add([value["n"]])
        self.names[value["n"] % 4] = [*(self.names[value["n"] % 4] or []), value["n"]]
        if value["n"] % 2:
            self.names.remove(value["n"] % 3)
        self.most.add(value["n"])
        self.sums.add(value["n"])
        timers = context.timer_service()
        timers.register_event_time_timer((context.timestamp() or 0) // 2000 * 2000 + 5000)
        if value["n"] % 3 == 0:
            timers.delete_event_time_timer((context.timestamp() or 0) // 2000 * 2000 + 3000)
        yield self._now()
        held["n"] += number(value)
        self.value.update(held)
        yield self._now()

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Any]:
        yield self._now()
        self.names.clear()

    def _now(self) -> dict[str, Any]:
        states = (self.value.value(), self.items.get(), self.names.entries(), self.most.get(), self.sums.get())
        return {"text": repr(states)}


class Total(AggregateFunction):
    def create_accumulator(self) -> Any:
        return {"n": 0}

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator["n"] += value if isinstance(value, int) else number(value)
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator["n"]

    def merge(self, left: Any, right: Any) -> Any:
        return {"n": left["n"] + right["n"]}


def _keyed_process(stream: DataStream) -> DataStream:
    return stream.key_by("key").process(EveryState(), uid="states", schema="text string")


def _reduce(stream: DataStream) -> DataStream:
    def longer(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
        left["n"] += number(right)
        return left

    first = stream.where(~pl.col("n").is_in([3, 5]))  # the first record of a key is not looked at
    return first.key_by("key").reduce(longer, uid="reduced")


class Both(CoMapFunction):
    def map1(self, value: dict[str, Any]) -> dict[str, Any]:
        return {"n": number(value)}

    def map2(self, value: dict[str, Any]) -> dict[str, Any]:
        return {"n": -number(value)}


def _connected(stream: DataStream) -> DataStream:
    odd, even = stream.where(pl.col("n") % 2 == 1), stream.where(pl.col("n") % 2 == 0)
    return odd.connect(even).map(Both(), schema="n long")


class KeyedBoth(KeyedCoProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_state(ValueStateDescriptor("seen", "long"))

    def process_element1(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        self.seen.update((self.seen.value() or 0) + 1)
        yield {"n": number(value)}

    def process_element2(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        self.seen.update((self.seen.value() or 0) + 1)
        number(value)
        context.timer_service().register_event_time_timer(1_700_000_900_000)

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Any]:
        yield {"n": -(self.seen.value() or 0)}


def _keyed_connected(stream: DataStream) -> DataStream:
    odd, even = stream.where(pl.col("n") % 2 == 1), stream.where(pl.col("n") % 2 == 0)
    return odd.key_by("key").connect(even.key_by("key")).process(KeyedBoth(), uid="both", schema="n long")


class ByRule(BroadcastProcessFunction):
    def process_element(self, value: dict[str, Any], context: Any) -> Iterable[Any]:
        yield {"n": number(value)}

    def process_broadcast_element(self, value: dict[str, Any], context: Any) -> Iterable[Any]:
        return ()


class KeyedByRule(KeyedBroadcastProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_state(ValueStateDescriptor("seen", "long"))

    def process_element(self, value: dict[str, Any], context: Any) -> Iterable[Any]:
        self.seen.update((self.seen.value() or 0) + 1)
        yield {"n": (self.seen.value() or 0) * 100 + number(value)}

    def process_broadcast_element(self, value: dict[str, Any], context: Any) -> Iterable[Any]:
        return ()


def _broadcast(stream: DataStream) -> DataStream:
    rules = stream.where(pl.col("n") < 0).broadcast(RULES)
    return stream.connect(rules).process(ByRule(), uid="rules", schema="n long")


def _keyed_broadcast(stream: DataStream) -> DataStream:
    rules = stream.where(pl.col("n") < 0).broadcast(RULES)
    return stream.key_by("key").connect(rules).process(KeyedByRule(), uid="rules", schema="n long")


class Told(ProcessWindowFunction):
    def process(self, key: Any, context: WindowContext, elements: Iterable[Any]) -> Iterable[Any]:
        yield {"text": f"{key} {context.window()} {sum(element for element in elements)}"}


class Strict(ProcessWindowFunction):
    """Computed by a count trigger, so while a record is processed."""

    def process(self, key: Any, context: WindowContext, elements: Iterable[Any]) -> Iterable[Any]:
        texts = [(element["n"], element["text"]) for element in elements]
        yield {"text": f"{key} {texts}"}
        for _, text in texts:
            int(text)
            if text == "1000":
                raise ValueError("1000 is too much")


def _summed(stream: DataStream, assigner: Any) -> DataStream:
    windows = stream.key_by("key").window(assigner)
    return windows.aggregate(Total(), Told(), uid="sums", accumulator_type="struct<n long>", schema="text string")


def _tumbling(stream: DataStream) -> DataStream:
    return _summed(stream, TumblingEventTimeWindows.of("5 s"))


def _sliding(stream: DataStream) -> DataStream:
    return _summed(stream, SlidingEventTimeWindows.of("6 s", "2 s"))


def _sessions(stream: DataStream) -> DataStream:
    return _summed(stream.where(pl.col("n") % 20 < 12), EventTimeSessionWindows.with_gap("1 s"))


def _window_all(stream: DataStream) -> DataStream:
    def add(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
        return {**left, "n": left["n"] + number(dict(right))}

    first = stream.where(pl.col("n") > 5).window_all(TumblingEventTimeWindows.of("1 d"))
    return first.reduce(add, uid="all")


def _fired_by_a_record(stream: DataStream) -> DataStream:
    windows = stream.key_by("key").window(GlobalWindows.create()).trigger(CountTrigger.of(1))
    return windows.process(Strict(), uid="strict", schema="text string")


def _numbers_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = [number({"text": text}) for text in batch.column("text").to_pylist()]
    return pa.record_batch({"n": batch.column("n"), "value": pa.array(values, pa.int64())})


def _map_batches(stream: DataStream) -> DataStream:
    return stream.map_batches(_numbers_of, schema="n long, value long")


def _select(stream: DataStream) -> DataStream:
    return stream.select("n", value=pl.col("text").replace("1000", "x").cast(pl.Int64))


def _where(stream: DataStream) -> DataStream:
    return stream.where(pl.col("text").replace("1000", "x").cast(pl.Int64) > 1)


KINDS = [
    *(_map, _map_to_what_does_not_fit, _flat_map, _filter, _process, _keyed_process, _reduce),
    *(_connected, _keyed_connected, _broadcast, _keyed_broadcast),
    *(_tumbling, _sliding, _sessions, _window_all, _fired_by_a_record, _map_batches, _select, _where),
]
SPREAD = {_reduce: "reduced", _window_all: "all"}


def _job(kind: Callable[[DataStream], DataStream], policy: Any, good_only: bool) -> Callable[..., None]:
    def define(env: StreamEnvironment, source: ListSource) -> None:
        _define(kind, policy, good_only, env.from_source(source, SCHEMA, uid="in"))

    return define


def _define(kind: Callable[[DataStream], DataStream], policy: Any, good_only: bool, stream: DataStream) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 s").with_timestamps("at")
    stream = stream.assign_timestamps_and_watermarks(strategy)
    if good_only:
        stream = stream.where(~pl.col("text").is_in(["bad", "1000"]))
    made = kind(stream)
    if not good_only:
        made.on_error(policy)
    if policy == "dead_letter":
        made.get_side_output(FAILED).sink_to(TableSink("failed"), uid="failed")
    made.sink_to(TableSink("out"), uid="out")


@pytest.mark.promise("A12", "B8", "C1")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_records_that_can_t_be_processed_leave_nothing_but_a_dead_letter(kind: Any) -> None:
    tables = ["out", "failed", *(["side"] if kind is _process else [])]
    got = three_ways(_job(kind, "dead_letter", False), _records(), tables=tables)
    letters = got["failed"]
    wanted = run(lambda env: _job(kind, "fail", True)(env, ListSource(_records())))
    for table in set(tables) - {"failed"}:
        assert got[table] == sorted(wanted.rows(table), key=repr) and got[table]
    bad = {record["n"]: record for record in _records() if _bad(record)}  # type: ignore[index, call-overload]
    of = {json.loads(letter["record"])["n"]: letter for letter in letters}
    assert len(of) == len(letters) and set(of) <= set(bad)
    assert set(of) == set(bad) or kind in (_reduce, _sessions, _window_all)
    for n, letter in of.items():
        assert json.loads(letter["record"])["text"] == bad[n]["text"], "as it came, not as the function left it"
        assert letter["operator"] and letter["reason"]


@pytest.mark.promise("A12")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_records_of_one_batch_leave_nothing_but_their_own_dead_letters(kind: Any) -> None:
    """A `ListSource` gives each record in a batch of its own; `from_elements` gives many."""
    sizes: list[int] = []

    def sized(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        return batch

    def job(policy: Any, good_only: bool) -> Callable[[StreamEnvironment], None]:
        rows = [{**record, "at": pa.scalar(record["at"], pa.timestamp("us", "UTC")).as_py()} for record in _records()]  # type: ignore[index, dict-item]
        return lambda env: _define(kind, policy, good_only, env.from_elements(rows, SCHEMA).map_batches(sized))

    got, wanted = run(job("dead_letter", False)), run(job("fail", True))
    assert max(sizes) > 20
    for table in ("out", *(["side"] if kind is _process else [])):
        assert sorted(got.rows(table), key=repr) == sorted(wanted.rows(table), key=repr) and got.rows(table)
    left_out = [json.loads(letter["record"]) for letter in got.rows("failed")]
    bad = {record["n"]: record["text"] for record in _records() if _bad(record)}  # type: ignore[index, call-overload]
    assert left_out and all(bad.pop(record["n"]) == record["text"] for record in left_out)
    assert not bad or kind in (_reduce, _sessions, _window_all)


@pytest.mark.promise("A12")
@pytest.mark.parametrize("message", ["half of a pair: \ud800", None], ids=["no text", "raises"])
def test_a_record_whose_error_has_no_message_that_can_be_written_is_left_out_too(message: str | None) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            if message is None:
                raise AttributeError("it was not made as it should be")
            return message

    def odd(record: dict[str, Any]) -> Any:
        raise Odd

    def job(env: StreamEnvironment) -> None:
        made = env.from_source(ListSource(_records()[:1]), SCHEMA, uid="in").map(odd).on_error("dead_letter")
        made.get_side_output(FAILED).sink_to(TableSink("failed"), uid="failed")
        made.sink_to(TableSink("out"), uid="out")

    (letter,) = run(job).rows("failed")
    assert letter["reason"] == (
        "Odd: half of a pair: \\ud800" if message else "Odd: (its message raises AttributeError)"
    )


class Misfit(ProcessWindowFunction):
    """Gives a result that does not fit for a bad record, when a record fires the window."""

    def process(self, key: Any, context: WindowContext, elements: Iterable[Any]) -> Iterable[Any]:
        for element in elements:
            yield {"n": element["text"] if _bad(element) else element["n"]}


@pytest.mark.promise("A12")
def test_a_record_that_fires_a_window_whose_result_does_not_fit_is_left_out() -> None:
    def job(env: StreamEnvironment) -> None:
        stream = env.from_source(ListSource(_records()), SCHEMA, uid="in").key_by("key")
        windows = stream.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(1)))
        made = windows.process(Misfit(), uid="windows", schema="n long").on_error("dead_letter")
        made.get_side_output(FAILED).sink_to(TableSink("failed"), uid="failed")
        made.sink_to(TableSink("out"), uid="out")

    result = run(job)
    bad = {record["n"] for record in _records() if _bad(record)}  # type: ignore[index, call-overload]
    assert {row["n"] for row in result.rows("out")} == {*range(90)} - bad
    assert {json.loads(letter["record"])["n"] for letter in result.rows("failed")} == bad
    assert all("declares the field 'n' as int64" in letter["reason"] for letter in result.rows("failed"))


class Seen(ProcessWindowFunction):
    """Asks for its state with the first record."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def process(self, key: Any, context: WindowContext, elements: Iterable[Any]) -> Iterable[Any]:
        seen = context.global_state().get_state(ValueStateDescriptor("seen", self.kind))
        seen.update(seen.value() or ("1" if self.kind == "string" else 1))
        return ()


@pytest.mark.promise("A12", "D8")
def test_state_that_is_asked_for_as_another_type_is_no_fault_of_a_record() -> None:
    records: list[Item] = [*_records()[:9], Checkpoint(), *_records()[9:18]]

    def job(kind: str) -> Callable[[StreamEnvironment], None]:
        def define(env: StreamEnvironment) -> None:
            stream = env.from_source(ListSource(records), SCHEMA, uid="in").key_by("key")
            windows = stream.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(1)))
            windows.process(Seen(kind), uid="windows").on_error("skip").print(uid="out")

        return define

    begun = run(job("long"), until=lambda running: running.epochs >= 1)
    with pytest.raises(JobFailed, match="state 'seen' was saved as int64, but the job now declares string"):
        run(job("string"), after=begun)


@pytest.mark.promise("A12")
def test_a_dead_letter_says_what_was_raised_and_on_which_line() -> None:
    records: list[Item] = [{"n": 1, "key": "a", "text": "x y", "at": 1_700_000_000_000_000}]
    (letter,) = run(lambda env: _job(_map, "dead_letter", False)(env, ListSource(records))).rows("failed")
    assert letter["operator"].startswith("map")
    assert letter["reason"] == "ValueError: invalid literal for int() with base 10: 'x y0'"
    assert letter["line"].startswith("test_failed_records.py, line ")
    assert json.loads(letter["record"]) == {"n": 1, "key": "a", "text": "x y", "at": "2023-11-14T22:13:20Z"}
    (letter,) = run(
        lambda env: _job(_map_to_what_does_not_fit, "dead_letter", False)(
            env,
            ListSource([{**records[0], "text": "bad"}]),  # type: ignore[dict-item]
        )
    ).rows("failed")
    assert "declares the field 'value' as int64" in letter["reason"]
    assert letter["line"].startswith("test_failed_records.py, line ")


@pytest.mark.promise("A12", "F3")
def test_skipped_records_are_counted_once_through_crashes() -> None:
    got = three_ways(_job(_keyed_process, "skip", False), _records())
    wanted = run(lambda env: _job(_keyed_process, "fail", True)(env, ListSource(_records())))
    assert got["out"] == sorted(wanted.rows("out"), key=repr)
    story = [*_records()[:60], Checkpoint(), *_records()[60:80], Crash(), *_records()[80:]]

    def job(env: StreamEnvironment) -> None:
        env.set_restart_strategy(FixedDelay(attempts=2, delay_ms=5))
        _job(_keyed_process, "skip", False)(env, ListSource(story))

    result = run(job, parallelism=2)
    assert result.restarts == 1 and result.master.ledger["failed:states"] == sum(map(_bad, _records()))


@pytest.mark.promise("A12")
def test_by_default_and_with_fail_a_record_that_can_t_be_processed_ends_the_job() -> None:
    with pytest.raises(JobFailed, match="invalid literal for int"):
        run(lambda env: _job(_map, "fail", False)(env, ListSource(_records())))


@pytest.mark.promise("A12")
@pytest.mark.parametrize("kind", [_map, _map_batches])
def test_an_error_of_the_operating_system_is_not_the_record_s_fault(kind: Any, monkeypatch: Any) -> None:
    def away(record: dict[str, Any]) -> int:
        raise ConnectionRefusedError("the service is away")

    monkeypatch.setitem(globals(), "number", away)
    with pytest.raises(JobFailed, match="the service is away"):
        run(lambda env: _job(kind, "dead_letter", False)(env, ListSource(_records())))


def _stream(env: StreamEnvironment) -> DataStream:
    stream = env.from_source(ListSource([]), SCHEMA, uid="in")
    return stream.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at"))


@pytest.mark.promise("A12")
def test_a_mistake_with_on_error_is_told_when_the_job_is_built() -> None:
    env = StreamEnvironment()
    stream = _stream(env)
    with pytest.raises(JobError, match="'in' is a source; some sources take malformed='skip'"):
        stream.on_error("skip")
    with pytest.raises(JobError, match="write 'fail', 'skip' or 'dead_letter'"):
        stream.map(lambda row: row).on_error("ignore")  # type: ignore[arg-type]
    windows = stream.key_by("key").window(TumblingEventTimeWindows.of("1 s"))
    with pytest.raises(JobError, match=r"'n' .* can't leave single records out; map, flat_map"):
        windows.aggregate(n=count(), uid="n").on_error("skip")
    mapped = stream.map(lambda row: row, uid="mapped").on_error("dead_letter")
    with pytest.raises(JobError, match="called twice for 'mapped', first with 'dead_letter'"):
        mapped.on_error("skip")
    mapped.print(uid="out")
    with pytest.raises(JobError, match="comes too late: 'out' already follows 'mapped'"):
        mapped.on_error("skip")


@pytest.mark.promise("A12")
def test_dead_letters_that_nobody_takes_are_told_when_the_job_is_built() -> None:
    def job(env: StreamEnvironment) -> None:
        _stream(env).map(lambda row: row, uid="mapped").on_error("dead_letter").print()

    with pytest.raises(JobError, match=r"failed records of 'mapped' .* get_side_output\(FAILED\)"):
        run(job)
