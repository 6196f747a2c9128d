"""Goal: with each exchange a crash changes nothing (A4, D11), and each sends rows where it promises.

Topology: a source of two splits → the exchange → a filter at three subtasks → a table, whose files name their writers.
Faults: after a checkpoint the source's process dies, once in each split. Checks: every row exactly once (with
broadcast, once per subtask), and who got what; the ledger's equations hold, or no checkpoint would complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.api import DataStream, FixedDelay, StreamEnvironment
from engine.connectors.table import TableSink
from engine.testing import Checkpoint, Crash, Item, JobFailed, ListSource, LocalRun, run

ROWS = 60


def story(split: int) -> list[Item]:
    """The rows split, split + 2, …; a checkpoint before a third of them, a crash before two thirds."""
    rows: list[Item] = [{"n": n, "app": f"app{n % 5}"} for n in range(split, ROWS, 2)]
    third = len(rows) // 3
    return [*rows[:third], Checkpoint(), *rows[third : 2 * third + split], Crash(), *rows[2 * third + split :]]


def ran(exchange: Callable[[DataStream], DataStream], group: str = "default", parallelism: int = 3) -> LocalRun:
    def job(env: StreamEnvironment) -> None:
        env.set_restart_strategy(FixedDelay(attempts=5, delay_ms=10))
        rows = env.from_source(ListSource(story(0), story(1)), "n long, app string", uid="rows")
        exchange(rows).filter(lambda row: True).slot_sharing_group(group).sink_to(TableSink("t"), uid="out")

    result = run(job, parallelism=parallelism)
    assert result.restarts == 2, "one crash per split"
    return result


def by_subtask(result: LocalRun) -> dict[int, list[int]]:
    got: dict[int, list[int]] = {}
    for path in result.store.list(result.paths.table("t")):
        if path.endswith(".parquet"):
            _, _, _, subtask, _ = path.rsplit("/", 1)[1].split("-")
            numbers = pq.read_table(pa.BufferReader(result.store.read(path))).column("n").to_pylist()
            got.setdefault(int(subtask), []).extend(numbers)
    return got


EXCHANGES: dict[str, Callable[[DataStream], DataStream]] = {
    "none": lambda stream: stream,
    "forward": DataStream.forward,
    "shuffle": DataStream.shuffle,
    "rebalance": DataStream.rebalance,
    "rescale": DataStream.rescale,
    "broadcast": DataStream.broadcast,
    "global": DataStream.global_,
    "custom": lambda stream: stream.partition_custom(lambda app, n: int(app[3:]) % n, "app"),
}


@pytest.mark.promise("A4", "A9", "D11")
@pytest.mark.parametrize("group", ["default", "own"])
@pytest.mark.parametrize("kind", EXCHANGES)
def test_a_crash_changes_nothing_whatever_the_exchange(kind: str, group: str) -> None:
    result = ran(EXCHANGES[kind], group)
    copies = 3 if kind == "broadcast" else 1
    assert Counter(row["n"] for row in result.rows("t")) == dict.fromkeys(range(ROWS), copies)
    behind = 2 if kind in ("none", "forward") else 3
    assert len(result.slots) == (behind if group == "default" else 2 + behind)


@pytest.mark.promise("A4")
def test_each_exchange_sends_rows_where_it_promises() -> None:
    got = {kind: by_subtask(ran(exchange)) for kind, exchange in EXCHANGES.items()}
    for kind in ("none", "forward"):
        assert all(n % 2 == subtask for subtask, numbers in got[kind].items() for n in numbers)
    assert set(got["shuffle"]) == {0, 1, 2}
    counts = [len(got["rebalance"][subtask]) for subtask in range(3)]
    assert max(counts) - min(counts) <= 4, "a row per sender, before and after the restore"
    assert {n % 2 for subtask in (0, 1) for n in got["rescale"][subtask]} == {0} and len(got["rescale"][2]) == 30
    assert all(sorted(got["broadcast"][subtask]) == list(range(ROWS)) for subtask in range(3))
    assert set(got["global"]) == {0}
    assert all(n % 5 % 3 == subtask for subtask, numbers in got["custom"].items() for n in numbers)


@pytest.mark.promise("A4")
def test_fewer_subtasks_behind_an_exchange_get_everything_too() -> None:
    for kind in ("shuffle", "rebalance", "rescale", "broadcast", "global", "custom"):
        result = ran(EXCHANGES[kind], parallelism=1)
        assert sorted(row["n"] for row in result.rows("t")) == list(range(ROWS)), kind


@pytest.mark.promise("A4")
def test_a_custom_partitioner_out_of_range_fails_the_job_with_its_uid_and_key() -> None:
    with pytest.raises(
        JobFailed, match=r"operator 'rows', subtask \d, partition_custom of the key 'app\d': ValueError: .* returned 3"
    ):
        ran(lambda stream: stream.partition_custom(lambda app, n: n, "app"))
