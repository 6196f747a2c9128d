"""Lookup joins. Goal: the result is that of a join with the table as it was, in order, whatever happens meanwhile.

Topology: a source with two splits → lookup → Weir table. Faults: a slot dies, the parallelism changes, the table fails.
Checks: rows, against a plain dict; how often the table was asked, and for which keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count
from engine.connectors.table import TableSink
from engine.core.errors import JobError, StoreError
from engine.core.lookups import LookupTable
from engine.runtime.lookup_cache import Answer, LookupCache, unknown
from engine.testing import Checkpoint, Crash, JobFailed, ListSource, LocalRun, Wait, run


class Cities(LookupTable):
    """A table in memory that notes what it was asked for. `fails`: so many questions fail."""

    schema = pa.schema([("city", pa.string()), ("country", pa.string()), ("people", pa.int64())])

    def __init__(self, fails: int = 0) -> None:
        self.rows = [("Bern", "CH", 1), ("Genf", "CH", 2), ("Genf", "FR", 3), ("Rom", None, 4)]
        self.asked: list[list[str]] = []
        self.fails = fails

    def fetch(self, keys: pa.RecordBatch) -> pa.Table:
        if self.fails:
            self.fails -= 1
            raise StoreError("the table is away")
        wanted = keys.column("city").to_pylist()
        assert len(wanted) == len(set(wanted)) and None not in wanted
        self.asked.append(sorted(wanted))
        found = [row for row in self.rows if row[0] in wanted]
        return pa.table([list(column) for column in zip(*found, strict=True)] or [[], [], []], schema=self.schema)

    def joined(self, city: str | None, how: str) -> list[tuple[Any, Any]]:
        found = [(country, people) for name, country, people in self.rows if name == city]
        return found or ([(None, None)] if how == "left" else [])


def joining(table: LookupTable, source: ListSource, how: str = "left", **options: Any) -> Any:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("1 min")
        visits = env.from_source(source, "n long, city string", uid="visits")
        visits.join_lookup(table, on="city", how=how, uid="cities", **options).sink_to(TableSink("out"), uid="out")

    return job


def visits(*cities: Any, first: int = 0) -> list[Any]:
    return [{"n": first + n, "city": city} if isinstance(city, str | None) else city for n, city in enumerate(cities)]


def rows_of(done: LocalRun) -> list[tuple[Any, ...]]:
    return sorted(
        (tuple(row[name] for name in ("n", "city", "country", "people")) for row in done.rows("out")), key=str
    )


def expected(items: Sequence[Any], how: str) -> list[tuple[Any, ...]]:
    table = Cities()
    rows = [item for item in items if isinstance(item, dict)]
    return sorted(((r["n"], r["city"], *found) for r in rows for found in table.joined(r["city"], how)), key=str)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_each_record_gets_the_rows_of_its_key(how: str) -> None:
    items = visits("Bern", "Genf", None, "Nowhere", "Rom", "Bern", "Genf")
    table = Cities()
    done = run(joining(table, ListSource(items), how))
    assert rows_of(done) == expected(items, how)
    assert table.asked == [["Bern"], ["Genf"], ["Nowhere"], ["Rom"]], "each key once, also one without a row"


@pytest.mark.promise("D11")
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_crash_and_another_parallelism_lose_and_double_nothing(parallelism: int) -> None:
    first = visits("Bern", Checkpoint(), "Genf", Crash(), "Rom", Checkpoint(), "Bern")
    second = visits("Genf", Checkpoint(), "Rom", "Nowhere", Checkpoint(), None, first=100)
    source = ListSource(first, second)
    before = run(joining(Cities(), source), parallelism=2, until=lambda run: run.epochs >= 1)
    done = run(joining(Cities(), source), parallelism=parallelism, after=before)
    assert rows_of(done) == expected([*first, *second], "left")


@pytest.mark.promise("H8")
def test_a_table_that_is_away_restarts_the_job_which_goes_on() -> None:
    items = visits("Bern", Checkpoint(), "Genf", "Rom")
    done = run(joining(Cities(fails=2), ListSource(items)))
    assert done.restarts == 2
    assert rows_of(done) == expected(items, "left")


def test_an_answer_is_used_for_so_long_and_then_asked_again() -> None:
    items = visits("Bern", "Bern", Wait("4 min"), "Bern", Wait("2 min"), "Bern", "Bern")
    table = Cities()
    run(joining(table, ListSource(items), keep="5 min"))
    assert table.asked == [["Bern"], ["Bern"]]


def test_no_watermark_overtakes_the_records_before_it() -> None:
    """The windows behind the join would call them late."""

    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("1 min")
        source = ListSource([{"ts": n * 1000, "city": f"city {n}"} for n in range(20)])
        stream = env.from_source(source, "ts long, city string", uid="visits")
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
        timed = stream.assign_timestamps_and_watermarks(strategy).join_lookup(
            Cities(), on="city", how="left", uid="cities"
        )
        windows = timed.key_by("country").window(TumblingEventTimeWindows.of("1 s"))
        windows.aggregate(rows=count(), uid="windows").sink_to(TableSink("out"), uid="out")

    assert [row["rows"] for row in run(job).rows("out")] == [1] * 20


@given(
    st.lists(st.sampled_from(["Bern", "Genf", "Rom", "Nowhere", None]), min_size=1, max_size=30),
    st.sampled_from(["inner", "left"]),
    st.integers(1, 4),
)
def test_batches_are_joined_as_single_records_are(cities: list[str | None], how: str, max_keys: int) -> None:
    """In whole batches, with a cache that is too small for them."""

    def job(env: StreamEnvironment) -> None:
        rows = [{"n": n, "city": city} for n, city in enumerate(cities)]
        stream = env.from_elements(rows, schema="n long, city string")
        joined = stream.join_lookup(Cities(), on="city", how=how, uid="cities", max_keys=max_keys)
        joined.sink_to(TableSink("out"), uid="out")

    assert rows_of(run(job)) == expected([{"n": n, "city": city} for n, city in enumerate(cities)], how)


def answer(first: int, keys: int, at_ms: float) -> Answer:
    names = pa.table({"k": list(range(first, first + keys))})
    return Answer.of(names, names.append_column("v", names["k"]), at_ms)


def known(cache: LookupCache, now_ms: float, keys: range) -> list[int]:
    asked = pa.array(list(keys), pa.int64())
    missing = unknown(cache.answers(now_ms), [asked], ["k"]).column("k").to_pylist()
    return [key for key in keys if key not in missing]


def test_the_cache_forgets_the_oldest_answers_first() -> None:
    cache = LookupCache(keep_ms=1000, max_keys=10)
    for at in range(5):
        cache.add(answer(at * 4, 4, at_ms=at))
    assert known(cache, 5, range(20)) == list(range(12, 20))
    assert known(cache, 1003.5, range(20)) == list(range(16, 20))
    cache.add(answer(100, 50, at_ms=6))
    assert known(cache, 7, range(200)) == list(range(100, 150)), "one answer is kept whole, whatever its size"


def test_many_small_answers_are_merged_and_stay_known() -> None:
    cache = LookupCache(keep_ms=1000, max_keys=1000)
    for at in range(100):
        cache.add(answer(at, 1, at_ms=at))
        assert len(cache.answers(at)) <= 16
    assert known(cache, 100, range(200)) == list(range(100))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on": "town"}, r"join_lookup 'c': the stream has no column 'town'"),
        ({"on": "city", "how": "outer"}, "how must be 'inner' or 'left'"),
        ({"on": "city", "keep": "0 s"}, "must be more than nothing"),
        ({"on": "city", "max_keys": 0}, "must be more than nothing"),
    ],
)
def test_what_can_not_be_joined_is_refused(options: dict[str, Any], said: str) -> None:
    def job(env: StreamEnvironment) -> None:
        stream = env.from_source(ListSource([]), "n long, city string", uid="visits")
        stream.join_lookup(Cities(), uid="c", **options)

    with pytest.raises(JobError, match=said):
        run(job)


def test_an_error_of_an_author_s_table_ends_the_job_with_its_name() -> None:
    class Broken(Cities):
        def fetch(self, keys: pa.RecordBatch) -> pa.Table:
            raise KeyError("no such table")

    with pytest.raises(JobFailed, match=r"operator 'cities', subtask 0, fetch\(\) of 1 keys: KeyError"):
        run(joining(Broken(), ListSource(visits("Bern"))))
