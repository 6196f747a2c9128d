"""Keyed streams: running values per key, and what each mistake is told."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from engine.api import JobError, KeyedProcessFunction
from tests.api.streams.building import TEN_SECONDS, run, views


@pytest.mark.promise("A2")
def test_running_sum_min_and_max_emit_per_record_and_keep_the_schema() -> None:
    batch = pa.record_batch({"k": ["a", "b", "a", "a"], "x": [5, 7, 1, 3]})
    for method, expected in (("sum", [5, 7, 6, 9]), ("min", [5, 7, 1, 1]), ("max", [5, 7, 5, 5])):
        stream = getattr(views("k string, x long").key_by("k"), method)("x", uid="running")
        assert run(stream, batch).column("x").to_pylist() == expected


class Identity(KeyedProcessFunction):
    def process_element(self, value: Any, context: Any) -> Any:
        return [value]


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: views().key_by("app_id").window(TEN_SECONDS),
        "window needs event time: call assign_timestamps_and_watermarks(...) before key_by(...)",
    ),
    (lambda: views().key_by("app_id").sum("byte", uid="s"), "there is no column 'byte'"),
    (lambda: views().key_by("app_id").process(Identity(), uid=""), "process needs a uid: state is found by it"),
]


@pytest.mark.parametrize(("mistake", "text"), MISTAKES, ids=[text[:50] for _, text in MISTAKES])
def test_a_mistake_is_told_when_the_job_is_written(mistake: Callable[[], object], text: str) -> None:
    with pytest.raises(JobError) as caught:
        mistake()
    assert text in str(caught.value)
