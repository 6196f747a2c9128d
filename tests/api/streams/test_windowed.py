"""Windowed streams: the schema of their results, and what each mistake is told."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from engine.api import (
    JobError,
    OutputTag,
    TumblingEventTimeWindows,
    count,
    maximum,
    mean,
    minimum,
    quantile,
    top_n,
    total,
)
from tests.api.streams.building import TEN_SECONDS, timed


def test_window_results_have_the_keys_the_window_the_named_aggregates_and_event_time() -> None:
    stream = timed().key_by("app_id", "user_id").window(TEN_SECONDS)
    result = stream.aggregate(pv=count(), bytes=total("bytes"), last=maximum("ts"), avg=mean("bytes"), uid="pv")
    stamp = pa.timestamp("us", tz="UTC")
    assert result.schema == pa.schema(
        [
            ("app_id", pa.string()),
            ("user_id", pa.int64()),
            ("window_start", stamp),
            ("window_end", stamp),
            ("pv", pa.int64()),
            ("bytes", pa.int64()),
            ("last", stamp),
            ("avg", pa.float64()),
            ("_event_time", pa.int64()),
        ]
    )


def test_dictionary_keys_come_out_of_windows_as_their_values() -> None:
    schema = pa.schema([("k", pa.dictionary(pa.int32(), pa.string())), ("ts", pa.int64())])
    stream = timed(schema).key_by("k").window(TEN_SECONDS).aggregate(n=count(), low=minimum("k"), uid="w")
    assert stream.schema.field("k").type == pa.string()


def test_window_results_can_be_windowed_again() -> None:
    first = timed().key_by("app_id").window(TEN_SECONDS).aggregate(pv=count(), uid="pv")
    again = first.key_by("app_id").window(TumblingEventTimeWindows.of("1 min")).aggregate(pv=total("pv"), uid="pv1")
    assert again.schema.names == ["app_id", "window_start", "window_end", "pv", "_event_time"]


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(best=top_n("user_id", 3, by="byte"), uid="w"),
        "window 'w': best=top_n(user_id, 3, by=byte): there is no column 'byte'; the stream has (app_id string",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(mid=quantile("app_id", 0.5), uid="w"),
        "window 'w': mid=quantile(app_id, 0.5) needs a number; 'app_id' is string",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).side_output_late_data(OutputTag("late", "n long")),
        "the tag 'late' has (n long), but late records have the fields of the stream, (app_id string",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).side_output_late_data("late"),
        "side_output_late_data",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(uid="w"),
        "window 'w' needs at least one aggregate",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(b=total("byte"), uid="w"),
        "b=total(byte): there is no column 'byte'; the stream has (app_id string",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(b=total("app_id"), uid="w"),
        "b=total(app_id) needs a number; 'app_id' is string",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(app_id=count(), uid="w"),
        "the aggregate 'app_id' has the name of another result column",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(window_end=count(), uid="w"),
        "the aggregate 'window_end' has the name of another result column",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(_event_time=count(), uid="w"),
        "the aggregate '_event_time' has the name of another result column",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(n=count, uid="w"),
        "is not an aggregate: write one such as count()",
    ),
    (
        lambda: (
            timed("window_start long, ts long").key_by("window_start").window(TEN_SECONDS).aggregate(n=count(), uid="w")
        ),
        "the key 'window_start' has the name of a column that windows add: rename it with select(...)",
    ),
    (
        lambda: timed("_rows string, ts long").key_by("_rows").window(TEN_SECONDS).aggregate(n=count(), uid="w"),
        "the key '_rows' has the name of a column that windows add",
    ),
]


@pytest.mark.parametrize(("mistake", "text"), MISTAKES, ids=[text[:50] for _, text in MISTAKES])
def test_a_mistake_is_told_when_the_job_is_written(mistake: Callable[[], object], text: str) -> None:
    with pytest.raises(JobError) as caught:
        mistake()
    assert text in str(caught.value)
