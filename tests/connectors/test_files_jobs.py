"""Jobs that read files, from end to end in one process, through crashes.

Topology: files → (malformed records → table) → tumbling windows per app → table. Faults: a slot dies in the middle of a
file, twice. Checks: every record is in its window once, every malformed one in its table once, the ledger is balanced.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.api import (
    FixedDelay,
    JobError,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
    count_distinct,
)
from engine.connectors.files import MALFORMED, CsvSource, JsonSource, ParquetSource, parquet, text
from engine.connectors.table import TableSink
from engine.core.paths import JobPaths
from engine.core.sources import Source
from engine.graph.execution_graph import ExecutionGraph
from engine.protocol import ledger
from engine.protocol.messages import Acknowledge, Deploy, SlotMessage, Start, Trigger
from engine.runtime.operators.window_combine import WindowCombine
from engine.runtime.slot import SlotRuntime
from engine.testing import JobFailed, LocalRun, _Killed, run
from tests.fakes import ATTEMPT, JOB_ID, FakeClock, FakeOffload, FakeTransport, MemoryStore

SCHEMA = "app string, ts long"
WINDOW_MS = 100
STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")


class Dying:
    """Kills its process at these batches, each once."""

    def __init__(self, *at: int) -> None:
        self.batches = 0
        self.at = set(at)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.batches += 1
        if self.batches in self.at:
            self.at.remove(self.batches)
            raise _Killed
        return batch


def counting(source: Source, dying: Dying | None = None, aside: bool = False) -> Callable[[StreamEnvironment], None]:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("7 ms")
        env.set_restart_strategy(FixedDelay(attempts=10, delay_ms=1))
        views = env.from_source(source, SCHEMA, uid="views")
        if aside:
            views.get_side_output(MALFORMED).sink_to(TableSink("bad"), uid="bad")
        (
            views.assign_timestamps_and_watermarks(STRATEGY)
            .map_batches(dying or Dying())
            .key_by("app")
            .window(TumblingEventTimeWindows.of(WINDOW_MS))
            .aggregate(pv=count(), uid="pv")
            .sink_to(TableSink("out"), uid="out")
        )

    return job


def views(rows: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"app": "abc"[n % 3], "ts": n * 10} for n in range(first, first + rows)]


def windows(of: list[dict[str, Any]]) -> Counter[tuple[str, datetime]]:
    return Counter((v["app"], datetime.fromtimestamp(v["ts"] // WINDOW_MS * WINDOW_MS / 1000, UTC)) for v in of)


def counted(done: LocalRun, table: str = "out") -> Counter[tuple[str, datetime]]:
    found: Counter[tuple[str, datetime]] = Counter()
    for row in done.rows(table):
        assert (row["app"], row["window_start"]) not in found, "a window was published twice"
        found[row["app"], row["window_start"]] = row["pv"]
    return found


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """By a rename, as files should appear."""
    hidden = path.with_name(f".{path.name}")
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), hidden, row_group_size=40)
    else:
        with hidden.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["ts", "app"])
            writer.writeheader()
            writer.writerows(rows)
    hidden.rename(path)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many splits and chunks of few rows."""
    monkeypatch.setattr(parquet, "CHUNK_ROWS", 11)
    monkeypatch.setattr(parquet, "SPLIT_BYTES", 1)
    monkeypatch.setattr(text, "CHUNK_BYTES", 90)
    monkeypatch.setattr(text, "SPLIT_BYTES", 700)


@pytest.mark.promise("G1", "A1")
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_files_are_read_exactly_once_through_two_crashes(tmp_path: Path, suffix: str, parallelism: int) -> None:
    for n in range(3):
        write(tmp_path / f"{2 - n}.{suffix}", views(150, first=150 * n))  # by name, the latest come first
    source = ParquetSource(str(tmp_path)) if suffix == "parquet" else CsvSource(str(tmp_path))
    done = run(counting(source, Dying(5, 30)), parallelism=parallelism)
    assert done.restarts == 2
    assert counted(done) == windows(views(450))
    assert done.master.ledger[ledger.source_rows("views")] == 450
    assert "late:pv" not in done.master.ledger


def broken(folder: Path) -> list[dict[str, Any]]:
    """60 lines of 200 are no records; returns the good ones."""
    good = views(200)
    lines = [f"{v['ts']},{v['app']}" if n % 10 > 2 else f"{v['ts']}x,{v['app']}" for n, v in enumerate(good)]
    (folder / "a.csv").write_text("\n".join(["ts,app", *lines]))
    return [view for n, view in enumerate(good) if n % 10 > 2]


@pytest.mark.promise("G1")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_dead_letters_arrive_exactly_once_through_crashes(tmp_path: Path, parallelism: int) -> None:
    good = broken(tmp_path)
    source = CsvSource(str(tmp_path), malformed="dead_letter")
    done = run(counting(source, Dying(4, 9), aside=True), parallelism=parallelism)
    assert done.restarts == 2
    assert counted(done) == windows(good)
    bad = sorted(done.rows("bad"), key=lambda row: row["line"])
    assert [row["line"] for row in bad] == [n + 2 for n in range(200) if n % 10 <= 2]
    assert bad[1] == {
        "file": f"{tmp_path}/a.csv",
        "line": 3,
        "text": "10x,b",
        "reason": "column 'ts' is not of type int64: invalid value '10x'",
    }
    totals = done.master.ledger
    assert totals["source:views"] + totals["malformed:views"] == 200
    assert totals["malformed:views"] == totals["sink:bad"] == totals["sent:views->malformed-1"] == 60


@pytest.mark.promise("G1")
def test_skipped_records_are_counted_once_through_crashes(tmp_path: Path) -> None:
    good = broken(tmp_path)
    done = run(counting(CsvSource(str(tmp_path), malformed="skip"), Dying(4, 9)), parallelism=2)
    assert done.restarts == 2
    assert counted(done) == windows(good)
    assert (done.master.ledger["source:views"], done.master.ledger["malformed:views"]) == (140, 60)


@pytest.mark.promise("G1")
def test_by_default_a_malformed_record_fails_the_job_with_file_and_line(tmp_path: Path) -> None:
    broken(tmp_path)

    def job(env: StreamEnvironment) -> None:
        env.from_source(CsvSource(str(tmp_path)), SCHEMA, uid="views").sink_to(TableSink("out"), uid="out")

    with pytest.raises(JobFailed, match=r"a.csv, line 2: column 'ts' is not of type int64: invalid value '0x'"):
        run(job)


@pytest.mark.promise("G1", "B2")
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_watched_folder_is_read_as_files_appear_and_a_subtask_without_files_holds_nothing_back(
    tmp_path: Path, parallelism: int
) -> None:
    """Each file ends a window's time: its windows are published although nothing follows and subtasks are idle."""
    write(tmp_path / "0.csv", views(101))
    started = LocalRun(counting(CsvSource(str(tmp_path), watch="20 ms"), Dying(3, 8)), parallelism, {})

    def published(rows: int) -> Callable[[], bool]:
        return lambda: started.epochs > 0 and sum(row["pv"] for row in rows_of(started)) >= rows

    started.run(until=published(90))
    for n in range(1, 4):
        write(tmp_path / f"{n}.csv", views(100, first=100 * n + 1))
        started.run(until=published(100 * n + 90))
    assert started.restarts == 2
    found = counted(started)
    expected = windows(views(401))
    assert found and all(expected[window] == pv for window, pv in found.items())
    assert "late:pv" not in started.master.ledger


def rows_of(started: LocalRun) -> list[dict[str, Any]]:
    try:
        return started.rows("out")
    except FileNotFoundError:
        return []


@pytest.mark.promise("G1")
def test_files_that_appear_after_the_start_belong_to_the_next_job(tmp_path: Path) -> None:
    write(tmp_path / "0.csv", views(50))

    class Adding(Dying):
        def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            write(tmp_path / "1.csv", views(50, first=50))
            return super().__call__(batch)

    done = run(counting(CsvSource(str(tmp_path)), Adding(2)), parallelism=2)
    assert done.restarts == 1
    assert counted(done) == windows(views(50))


@pytest.mark.promise("G1")
def test_a_checkpoint_waits_for_the_listing_so_that_no_snapshot_forgets_files(tmp_path: Path) -> None:
    write(tmp_path / "0.csv", views(5))
    env = StreamEnvironment(parallelism=1)
    env.from_source(CsvSource(str(tmp_path)), SCHEMA, uid="views").sink_to(TableSink("out"), uid="out")
    graph = env.graph.translate("job", env.checkpoints, env.restart, env.max_parallelism, "")
    offload, control = FakeOffload(), Sent()
    slot = SlotRuntime(
        lambda deploy: ExecutionGraph(graph).plan(deploy.slot),
        JobPaths("job"),
        FakeClock(),
        FakeTransport(),
        offload,
        MemoryStore(),
        control,
    )
    for message in (Deploy(ATTEMPT, 0, ["here"], None, JOB_ID), Start(ATTEMPT), Trigger(ATTEMPT, 1, 0)):
        slot.on_control(message)
    slot.step()
    assert len(offload.waiting) == 1  # the listing; no upload of a snapshot
    for _ in range(3):
        offload.run()
        slot.step()
    (taken,) = [message for message in control.messages if isinstance(message, Acknowledge)]
    (split,) = taken.state.inline["views"]["splits"]
    assert "0.csv" in split


class Sent:
    def __init__(self) -> None:
        self.messages: list[SlotMessage] = []

    def send(self, message: SlotMessage) -> None:
        self.messages.append(message)


# --- how a job is written ---


def test_dead_letters_that_nobody_takes_are_told_when_the_job_is_built() -> None:
    with pytest.raises(
        JobError, match=r"the malformed records of source 'views' \(test_files_jobs.py, line \d+\) have no consumer"
    ):
        run(counting(JsonSource("/data", malformed="dead_letter")))


def test_a_side_output_that_there_is_not_is_told() -> None:
    with pytest.raises(JobError, match=r"'views' \(.*\) has no side output 'malformed'; it has: none$"):
        run(counting(JsonSource("/data"), aside=True))


@pytest.mark.promise("A10")
def test_a_side_output_is_an_edge_of_its_own_and_does_not_break_the_chain() -> None:
    env = StreamEnvironment(parallelism=2)
    counting(JsonSource("/data", malformed="dead_letter"), aside=True)(env)
    graph = env.graph.translate("job", env.checkpoints, env.restart, env.max_parallelism, "")
    assert [vertex.uids for vertex in graph.vertices] == [
        ["views", "map_batches-3", "pv.combine"],
        ["malformed-1", "bad"],
        ["pv", "out"],
    ]
    aside, keyed = graph.edges
    assert (aside.id, aside.side, aside.schema) == (
        "views->malformed-1",
        ("views", "malformed"),
        MALFORMED.schema,
    )
    assert keyed.side is None


@pytest.mark.promise("G1", "A2")
@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("reads_key", [False, True])
def test_keys_that_files_hold_in_dictionaries_are_grouped_by_their_places_and_give_the_same_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int, reads_key: bool
) -> None:
    """One file has dictionaries, one has none, and there are null keys. An aggregate that reads the key gets texts."""
    rows = [{"app": (None, "alpha", "beta", "gamma")[n % 4], "ts": n * 10} for n in range(600)]
    monkeypatch.setattr(parquet, "SPLIT_BYTES", 1 << 20)
    monkeypatch.setattr(parquet, "CHUNK_ROWS", 100)
    for name, part in (("a", rows[:300]), ("b", rows[300:])):
        table = pa.Table.from_pylist(part, schema=pa.schema([("app", pa.string()), ("ts", pa.int64())]))
        pq.write_table(table, tmp_path / f"{name}.parquet", use_dictionary=name == "a")
    seen: set[bool] = set()
    process = WindowCombine.process

    def spied(self: WindowCombine, batch: pa.RecordBatch, out: Any) -> None:
        seen.add(pa.types.is_dictionary(batch.column("app").type))
        process(self, batch, out)

    monkeypatch.setattr(WindowCombine, "process", spied)

    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("7 ms")
        stamped = env.from_source(ParquetSource(str(tmp_path)), SCHEMA, uid="views").assign_timestamps_and_watermarks(
            STRATEGY
        )
        by_app = stamped.key_by("app").window(TumblingEventTimeWindows.of(WINDOW_MS))
        more = {"apps": count_distinct("app")} if reads_key else {}
        by_app.aggregate(pv=count(), uid="pv", **more).sink_to(TableSink("out"), uid="out")

    done = run(job, parallelism=parallelism)
    assert counted(done) == windows(rows)
    assert seen == ({False} if reads_key else {False, True})
