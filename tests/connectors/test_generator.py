"""The generator source: record n depends on n alone, so any split can go on from any position with identical rows."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.connectors.generator import GeneratorSource
from engine.core.errors import SchemaMismatch
from engine.core.sources import SplitReader
from tests.fakes import FakeClock, source_context

SCHEMA = pa.schema([("n", pa.int64()), ("square", pa.int64()), ("name", pa.string())])


def make(n: np.ndarray) -> dict[str, object]:
    return {"n": n, "square": n * n, "name": pa.array([f"r{i}" for i in n])}


def read_all(reader: SplitReader, max_rows: int = 7) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    while not reader.finished:
        batch = reader.poll(max_rows)
        assert batch is not None and 0 < batch.num_rows <= max_rows
        rows += batch.to_pylist()
    assert reader.poll(max_rows) is None
    return rows


@given(st.integers(1, 5), st.integers(0, 60))
def test_split_s_of_S_holds_the_records_s_plus_multiples_of_S(splits: int, rows: int) -> None:
    source = GeneratorSource(make, splits, rows)
    assert source.splits() == [str(split) for split in range(splits)]
    for split in range(splits):
        numbers = [row["n"] for row in read_all(source.reader(str(split), None, source_context(SCHEMA)))]
        assert numbers == list(range(split, rows, splits))


@given(st.integers(1, 4), st.integers(1, 60), st.data())
def test_going_on_from_any_position_gives_identical_rows(splits: int, rows: int, data) -> None:
    source = GeneratorSource(make, splits, rows)
    split = str(data.draw(st.integers(0, splits - 1)))
    whole = read_all(source.reader(split, None, source_context(SCHEMA)), max_rows=1000)
    first = source.reader(split, None, source_context(SCHEMA))
    before: list[dict[str, object]] = []
    for size in data.draw(st.lists(st.integers(1, 9), max_size=5)):
        batch = first.poll(size)
        before += batch.to_pylist() if batch is not None else []
    assert first.position == len(before)
    assert before + read_all(source.reader(split, first.position, source_context(SCHEMA)), max_rows=5) == whole


def test_without_a_rate_it_never_waits() -> None:
    reader = GeneratorSource(make, 2).reader("1", None, source_context(SCHEMA))
    for _ in range(3):
        batch = reader.poll(100)
        assert batch is not None and batch.num_rows == 100
        assert reader.wakeup_ms is None
    assert not reader.finished


def test_the_rate_is_kept_by_the_clock_and_all_splits_together() -> None:
    clock = FakeClock(now_ms=500.0)
    reader = GeneratorSource(make, splits=2, rate=2000).reader(
        "0", None, source_context(SCHEMA, clock)
    )  # 1 a ms per split
    assert reader.poll(10_000) is None
    made = 0
    for _ in range(50):
        clock.pass_ms(20)
        batch = reader.poll(10_000)
        made += batch.num_rows if batch is not None else 0
    assert 998 <= made <= 1000


def test_a_few_records_go_together_and_it_says_when_to_look_again() -> None:
    clock = FakeClock()
    reader = GeneratorSource(make, splits=1, rate=5000, buffer_timeout_ms=2).reader(
        "0", None, source_context(SCHEMA, clock)
    )
    assert reader.poll(100) is None
    assert reader.wakeup_ms == 2.0
    clock.now = 1.9
    assert reader.poll(100) is None
    clock.now = 2.0
    batch = reader.poll(100)
    assert batch is not None and batch.num_rows == 10


@given(st.floats(0.01, 1e6), st.integers(1, 3), st.floats(0, 1e9))
def test_at_its_wake_up_time_there_is_always_something_to_read(rate: float, splits: int, start: float) -> None:
    """Otherwise a loop that sleeps until then would find nothing, be told the same time, and spin."""
    clock = FakeClock(now_ms=start)
    reader = GeneratorSource(make, splits, rate=rate).reader("0", None, source_context(SCHEMA, clock))
    reader.poll(1000)
    for _ in range(20):
        assert reader.wakeup_ms is not None and reader.wakeup_ms > clock.now
        clock.now = reader.wakeup_ms
        assert reader.poll(10_000_000) is not None


def test_a_backlog_is_read_at_once_in_full_batches() -> None:
    clock = FakeClock()
    reader = GeneratorSource(make, splits=1, rate=1000).reader("0", None, source_context(SCHEMA, clock))
    clock.pass_ms(10_000)
    sizes = []
    while (batch := reader.poll(4096)) is not None:
        sizes.append(batch.num_rows)
        assert (reader.wakeup_ms is None) == (batch.num_rows == 4096)
    assert sizes == [4096, 4096, 1808]


def test_a_rate_counts_from_the_position_that_it_goes_on_from() -> None:
    clock = FakeClock()
    reader = GeneratorSource(make, splits=1, rate=1000).reader("0", 500, source_context(SCHEMA, clock))
    clock.pass_ms(100)
    batch = reader.poll(10_000)
    assert batch is not None and (batch.num_rows, batch["n"][0].as_py()) == (100, 500)


def test_a_live_feed_begins_where_it_is_by_now_and_what_nobody_read_is_gone() -> None:
    clock = FakeClock(now_ms=77.0, wall_ms=1_000_000)
    source = GeneratorSource(make, splits=2, rate=2000, live_since_ms=1_000_000 - 3000)
    reader = source.reader("1", None, source_context(SCHEMA, clock))
    assert reader.position == 3000
    clock.pass_ms(50)
    batch = reader.poll(10_000)
    assert batch is not None and batch.num_rows == 50
    assert batch["n"][0].as_py() == 3000 * 2 + 1


def test_a_live_feed_goes_on_from_a_position_and_catches_up() -> None:
    clock = FakeClock(wall_ms=1_000_000)
    source = GeneratorSource(make, splits=1, rate=1000, live_since_ms=1_000_000 - 3000)
    reader = source.reader("0", 1000, source_context(SCHEMA, clock))
    batch = reader.poll(10_000)
    assert batch is not None and (batch.num_rows, batch["n"][0].as_py()) == (2000, 1000)


def test_a_live_feed_that_has_not_begun_begins_at_the_beginning() -> None:
    source = GeneratorSource(make, splits=1, rate=1000, live_since_ms=2_000_000)
    assert source.reader("0", None, source_context(SCHEMA, FakeClock(wall_ms=1_000_000))).position == 0


def test_columns_are_cast_to_the_declared_schema() -> None:
    stamp = pa.timestamp("us", tz="UTC")
    schema = pa.schema([("small", pa.int16()), ("micros", stamp), ("when", stamp), ("chunks", pa.string())])

    def typed(n: np.ndarray) -> dict[str, object]:
        return {
            "small": n,
            "micros": n * 1_000_000,
            "when": (n * 1000).astype("datetime64[ms]"),
            "chunks": pa.chunked_array([["a"] * len(n)]),
            "extra": n,
        }

    batch = GeneratorSource(typed, 1, 2).reader("0", None, source_context(schema)).poll(10)
    assert batch is not None and batch.schema == schema
    second = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    assert batch.to_pylist()[1] == {"small": 1, "micros": second, "when": second, "chunks": "a"}


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"a": [1, 2]}, "the generator made no column 'n'; it made ['a']"),
        ({"n": ["x", "y"]}, "the generator's column 'n' is not of type int64"),
        ({"n": [1]}, "the generator's column 'n' has 1 values for 2 record numbers: its function gets an array"),
    ],
)
def test_a_generator_that_does_not_make_what_is_declared_is_told_so(columns: dict[str, object], text: str) -> None:
    reader = GeneratorSource(lambda n: columns, 1, 2).reader("0", None, source_context(pa.schema([("n", pa.int64())])))
    with pytest.raises(SchemaMismatch) as caught:
        reader.poll(10)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"splits": 0}, "at least one split, not 0"),
        ({"rows": -1}, "can't make -1 records"),
        ({"rate": 0}, "must be positive, not 0"),
        ({"live_since_ms": 1}, "a live generator needs a rate"),
    ],
)
def test_options_that_can_not_be_are_refused(options: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        GeneratorSource(make, **options)
