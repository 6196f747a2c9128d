"""Lookup joins: what waits for an answer, and what does not. `tests/test_lookups.py` joins whole streams."""

from __future__ import annotations

import pyarrow as pa
import pytest

from engine.core.errors import StoreError
from engine.core.lookups import LookupTable
from engine.runtime.operators.lookup_join import LookupJoin
from tests.fakes import Collected, FakeOffload, context


class Doubles(LookupTable):
    """Has a row for each key. `fails`: so many questions fail."""

    schema = pa.schema([("k", pa.int64()), ("twice", pa.int64())])

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails

    def fetch(self, keys: pa.RecordBatch) -> pa.Table:
        if self.fails:
            self.fails -= 1
            raise StoreError("away")
        values = keys.column("k").to_pylist()
        return pa.table([values, [2 * value for value in values]], schema=self.schema)


def opened(offload: FakeOffload, fails: int = 0) -> LookupJoin:
    operator = LookupJoin(Doubles(fails), ["k"], False, Doubles.schema, 1000.0, 100)
    operator.open(context(offload=offload), None)
    return operator


def keys(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(values, pa.int64())})


def twice(out: Collected) -> list[int]:
    return [row["twice"] for row in out.rows]


def test_while_a_question_is_open_the_subtask_takes_neither_input_nor_snapshot() -> None:
    offload, out = FakeOffload(), Collected()
    operator = opened(offload)
    operator.process(keys(1), out)
    operator.on_watermark(5, out)
    operator.process(keys(2), out)
    assert operator.blocked and operator.firing and not out.events
    offload.run()
    assert not operator.blocked and operator.firing, "it has to be asked to work, and takes no input before"
    assert operator.work(100, out)
    assert twice(out) == [2] and out.watermarks == [5] and operator.blocked, "the next question is open"
    offload.run()
    assert operator.work(100, out) and not operator.firing and not operator.blocked
    assert twice(out) == [2, 4]
    operator.process(keys(2, 1), out)
    assert not operator.firing and twice(out) == [2, 4, 4, 2], "what is known needs no question"


def test_an_answer_that_comes_after_a_release_is_not_taken_for_that_of_another_batch() -> None:
    offload, out = FakeOffload(), Collected()
    operator = opened(offload)
    operator.process(keys(1), out)
    operator.release(out)
    assert twice(out) == [2] and not operator.firing
    operator.process(keys(7), out)
    offload.run()
    while operator.firing:
        assert operator.work(100, out)
    assert twice(out) == [2, 14]


def test_an_answer_that_came_before_a_release_is_not_taken_for_that_of_another_batch() -> None:
    offload, out = FakeOffload(), Collected()
    operator = opened(offload)
    operator.process(keys(1), out)
    offload.run()
    operator.release(out)
    operator.process(keys(7), out)
    offload.run()
    assert operator.work(100, out)
    assert twice(out) == [2, 14]


def test_a_question_that_fails_ends_the_attempt_on_the_task_thread() -> None:
    offload, out = FakeOffload(), Collected()
    operator = opened(offload, fails=1)
    operator.process(keys(1), out)
    offload.run()
    assert not operator.blocked
    with pytest.raises(StoreError, match="away"):
        operator.work(100, out)
