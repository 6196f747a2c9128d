"""`GeneratedWatermark` and the source that asks it: one rule a test (B1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import JobError, WatermarkGenerator, WatermarkOutput, WatermarkStrategy
from engine.core.errors import UserFunctionError
from engine.core.event_time import EventTimeStrategy
from engine.core.functions import Row
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.runtime.generated_watermarks import GeneratedWatermark
from engine.runtime.operators.base import RestoredState
from engine.runtime.operators.columnar import AssignGenerated
from engine.runtime.source_head import SourceHead
from tests.fakes import Collected, FakeClock, context
from tests.runtime.test_source_head import SCHEMA, Script


class Each(WatermarkGenerator):
    """Every record is a watermark."""

    def on_event(self, event: Row, event_timestamp: int, output: WatermarkOutput) -> None:
        output.emit_watermark(event_timestamp)


class Calls(WatermarkGenerator):
    """Notes how it is called."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_event(self, event: Row, event_timestamp: int, output: WatermarkOutput) -> None:
        self.calls.append((event, event_timestamp))

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        self.calls.append("periodic")


def strategy(generator: Callable[[], WatermarkGenerator], **more: Any) -> EventTimeStrategy:
    made = WatermarkStrategy.for_generator(lambda context: generator(), **more)
    return made.with_timestamps("ts").compiled("'src'")


def generated(generator: Callable[[], WatermarkGenerator], split: str | None = "0", **more: Any) -> GeneratedWatermark:
    return GeneratedWatermark(strategy(generator), context("src"), split, **more)


def batch(*times: int | None) -> tuple[pa.RecordBatch, pa.Array]:
    column = pa.array(times, pa.int64())
    return pa.record_batch([column], schema=SCHEMA), column


def head(script: dict[str, Any], generator: Callable[[], WatermarkGenerator], restored: Any = None) -> SourceHead:
    made = SourceHead(Script(script), SCHEMA, strategy(generator))
    made.open(context("src"), RestoredState(restored, []) if restored else None)
    return made


@pytest.mark.promise("B1")
def test_records_without_event_time_do_not_reach_the_generator() -> None:
    calls = Calls()
    made = generated(lambda: calls)
    made.on_batch(*batch(5, None, 7))
    assert calls.calls == [({"ts": 5}, 5), ({"ts": 7}, 7), "periodic"]
    calls.calls.clear()
    made.on_batch(*batch(None))
    assert calls.calls == ["periodic"]


@pytest.mark.promise("B1")
def test_a_batch_without_event_times_does_not_reach_on_batch() -> None:
    class OfBatches(Calls):
        def on_batch(self, batch: pa.RecordBatch, timestamps: pa.Array, output: WatermarkOutput) -> None:
            self.calls.append((batch.to_pylist(), timestamps.to_pylist()))

    calls = OfBatches()
    made = generated(lambda: calls)
    made.on_batch(*batch(5, None, 7))
    made.on_batch(*batch(None, None))
    assert calls.calls == [([{"ts": 5}, {"ts": 7}], [5, 7]), "periodic", "periodic"]
    assert not made.by_row and generated(Each).by_row


@pytest.mark.promise("B1")
@given(st.lists(st.integers(-(2**70), 2**47)))
def test_a_watermark_never_goes_back_and_one_before_all_times_is_none(emitted: list[int]) -> None:
    made = generated(Each)
    reached = MIN_WATERMARK
    for time_ms in emitted:
        made.emit_watermark(time_ms)
        assert made.reached_ms >= reached
        reached = made.reached_ms
    wanted = [time_ms for time_ms in emitted if time_ms >= -62_135_596_800_000]
    assert reached == max(wanted, default=MIN_WATERMARK)


@pytest.mark.promise("B1")
def test_a_quiet_generator_is_asked_once_per_interval_and_one_without_the_method_never() -> None:
    calls, where = Calls(), context("src")
    clock = where.clock
    assert isinstance(clock, FakeClock)
    made = GeneratedWatermark(strategy(lambda: calls, emit_interval="1 s"), where, "0")
    assert made.due_ms == clock.now + 1000
    clock.pass_ms(999)
    assert not made.on_time()
    clock.pass_ms(1)
    assert made.on_time() and not made.on_time() and calls.calls == ["periodic"]
    assert made.due_ms == clock.now + 1000
    assert GeneratedWatermark(strategy(Each), where, "0").due_ms is None


@pytest.mark.promise("B1")
def test_a_source_wakes_up_to_ask_its_generators() -> None:
    for generator, wakeup_ms in ((Calls, 5.0), (Each, 10.0)):
        made = SourceHead(Script({"0": [None, [1]]}), SCHEMA, strategy(generator, emit_interval=5))
        made.open(context("src"), None)
        made.poll(1)
        assert made.wakeup_ms == wakeup_ms, "the reader itself wants to be asked after 10 ms"


@pytest.mark.promise("B1")
def test_the_lowest_split_counts_and_one_without_a_watermark_holds_all_back() -> None:
    made = head({"0": [[50], [60], [70]], "1": [None, [20], [55]]}, Each)
    made.poll(1)
    assert made.watermark() is None
    made.poll(1)
    made.poll(1)
    assert made.watermark() == 20
    while not made.finished:
        made.poll(1)
    assert made.row_lane, "the generator is called with each record"


@pytest.mark.promise("B1", "D7")
def test_the_watermark_of_each_split_is_in_the_snapshot_also_of_those_that_were_read_to_their_ends() -> None:
    first = head({"0": [[50], [60]], "1": [[20], [55]]}, Each)
    for _ in range(3):
        first.poll(1)
    assert first.watermark() == 20
    inline = first.snapshot(1).inline
    assert inline["generated"] == {"0": 60, "1": 20} and inline["generators"] == {}
    restored = head({"0": [[50], [60]], "1": [[20], [55]]}, Calls, [inline])
    assert restored.watermark() == 20
    assert restored.poll(1) is not None and restored.watermark() is None
    assert restored.snapshot(2).inline["generated"] == {"0": 60, "1": 20}, "a new one starts where the old one was"


@pytest.mark.promise("B1", "D7")
def test_splits_that_were_let_go_keep_their_watermarks() -> None:
    source = Script({"0": [[50]], "1": [[20], [55]]})
    source.open_splits = 1
    made = SourceHead(source, SCHEMA, strategy(Each))
    made.open(context("src"), None)
    made.poll(1)
    made.poll(1)
    assert made.snapshot(1).inline["generated"] == {"0": 50, "1": 20} and source.closed == ["0"]
    restored = SourceHead(source, SCHEMA, strategy(Each))
    restored.open(context("src"), RestoredState([made.snapshot(1).inline], []))
    assert restored.snapshot(2).inline["generated"] == {"0": 50, "1": 20}


class Keeps(Each):
    def __init__(self, state: Any = None) -> None:
        self.state = state

    def snapshot_state(self) -> Any:
        return self.state

    def restore_state(self, state: Any) -> None:
        self.state = state


@pytest.mark.parametrize("state", [0, 1.5, "x", [1, [None]], 2**80, {"a": {"b": [True]}}])
def test_state_is_numbers_texts_lists_and_dicts_and_comes_back_equal(state: Any) -> None:
    kept = generated(lambda: Keeps(state)).state()
    assert kept == state and (kept is not state or not isinstance(state, list | dict))
    again = Keeps()
    assert generated(lambda: again, state=kept).state() == state


@pytest.mark.parametrize("state", [{1: 2}, (1, 2), {3}, object(), float("nan"), b"x", np.zeros(2)])
def test_state_that_a_snapshot_can_not_keep_is_refused_with_the_line_of_the_method(state: Any) -> None:
    with pytest.raises(UserFunctionError, match="which a snapshot can't keep: return numbers") as failed:
        generated(lambda: Keeps(state)).state()
    assert failed.value.raised.line == f"{__file__}:{Keeps.snapshot_state.__code__.co_firstlineno}"


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        (None, "an int, not None"),
        (1.5, "an int, not 1.5"),
        ("5", "an int, not '5'"),
        (2**62, "is after the year 9999: a watermark is in milliseconds"),
        (MAX_WATERMARK, "is after the year 9999"),
    ],
)
def test_what_is_no_time_in_milliseconds_is_refused(given_: Any, says: str) -> None:
    class Wrong(WatermarkGenerator):
        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            output.emit_watermark(given_)

    with pytest.raises(UserFunctionError, match="operator 'src', subtask 0, split '0', on_periodic_emit") as failed:
        generated(Wrong).on_batch(*batch(5))
    assert says in str(failed.value)
    assert failed.value.raised.line == f"{__file__}:{Wrong.on_periodic_emit.__code__.co_firstlineno + 1}"


class Broken(WatermarkGenerator):
    def on_event(self, event: Row, event_timestamp: int, output: WatermarkOutput) -> None:
        output.emit_watermark(100 // event_timestamp)


class ShortOfArguments(WatermarkGenerator):
    def on_event(self, event: Row) -> None:  # type: ignore[override]
        raise AssertionError


@pytest.mark.parametrize(("made", "after"), [(Broken, 1), (ShortOfArguments, 0)])
def test_an_error_of_a_generator_names_the_record_and_the_authors_line(
    made: type[WatermarkGenerator], after: int
) -> None:
    with pytest.raises(UserFunctionError, match=r"split '0', on_event, \{'ts': 0\}: ") as failed:
        generated(made).on_batch(*batch(0))
    assert failed.value.raised.line == f"{__file__}:{made.on_event.__code__.co_firstlineno + after}"


class Nothing(WatermarkGenerator):
    pass


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: "x", "the function of for_generator returned 'x': return a WatermarkGenerator"),
        (Nothing, "Nothing would never emit a watermark: define one of on_event, on_batch, on_periodic_emit"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_function_that_makes_no_generator_is_told_so_when_its_split_is_found(made: Any, says: str) -> None:
    with pytest.raises(UserFunctionError) as failed:
        head({"0": [[1]]}, made)
    assert says in str(failed.value) and "split '0', the watermark generator" in str(failed.value)
    assert failed.value.raised.line.startswith(f"{__file__}:")


# --- behind another operator ---


def behind(generator: Callable[[], WatermarkGenerator], restored: Any = None) -> AssignGenerated:
    made = AssignGenerated(strategy(generator))
    made.open(context("stamps"), RestoredState(restored, []) if restored else None)
    return made


@pytest.mark.promise("B1", "D7")
def test_behind_an_operator_the_generator_makes_one_watermark_and_a_restore_does_not_lower_it() -> None:
    made, out = behind(Each), Collected()
    made.process(batch(5, 9, 7)[0], out)
    assert out.watermarks == [9] and made.snapshot(1).inline == {"watermark": 9}
    again, out = behind(Each, [{"watermark": 9}]), Collected()
    again.process(batch(4)[0], out)
    assert out.watermarks == [9] and again.snapshot(1).inline == {"watermark": 9}
    assert again.due_ms is None and not again.work(1, out)


@pytest.mark.promise("B1")
def test_nothing_is_emitted_behind_the_end_of_event_time() -> None:
    class Later(WatermarkGenerator):
        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            output.emit_watermark(77)

    made, out = behind(Later), Collected()
    made.on_watermark(MAX_WATERMARK, out)
    assert isinstance(made.context.clock, FakeClock)
    made.context.clock.pass_ms(1000)
    assert made.work(1, out) and out.watermarks == [MAX_WATERMARK]


def test_behind_an_operator_a_generator_has_no_splits_to_keep_state_for_or_to_fall_idle() -> None:
    class Idles(WatermarkGenerator):
        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            output.mark_idle()

    with pytest.raises(UserFunctionError, match=r"only a generator of a split keeps state: call assign_timestamps"):
        behind(Keeps)
    with pytest.raises(UserFunctionError, match="only the splits of a source fall idle"):
        behind(Idles).process(batch(1)[0], Collected())


# --- while the job is built ---


class Takes(WatermarkGenerator):
    def __init__(self, a: int, b: int) -> None: ...


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        (Each(), r"not an object of Each: each split needs its own; write for_generator\(lambda context: Each\(\)\)"),
        ("x", "takes a function that makes a generator, not 'x'"),
        (lambda: Each(), r"a lambda \(test_generated_watermarks.py, line \d+\) does not take one argument"),
        (Takes, r"the class Takes \(test_generated_watermarks.py, line \d+\) does not take one argument"),
    ],
)
def test_what_is_no_function_that_makes_generators_is_refused_with_what_to_write(given_: Any, says: str) -> None:
    with pytest.raises(JobError, match=says):
        WatermarkStrategy.for_generator(given_)


def test_an_interval_is_above_zero_and_a_column_is_needed() -> None:
    with pytest.raises(JobError, match="emit_interval 0 ms; it must be above 0"):
        WatermarkStrategy.for_generator(lambda context: Each(), emit_interval=0)
    with pytest.raises(JobError, match=r"add with_timestamps\(COLUMN\)"):
        WatermarkStrategy.for_generator(lambda context: Each()).compiled("'views'")
