"""The Kafka sink, with a real broker: what `read_committed` readers see while things break.

Jobs run in one process (`engine.testing`). Checks: each row is in the topic once, epochs are seen as a whole, and no
transaction stays open between checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.api import FixedDelay, StreamEnvironment
from engine.connectors.kafka import Bytes, Guarantee, KafkaSink, KafkaSource, client, producing, transactions
from engine.testing import Checkpoint, Crash, JobFailed, ListSource, run
from tests.connectors import kafka_topics as topics
from tests.servers.kafka import Broker, running

pytestmark = pytest.mark.promise("G3")

SCHEMA = "n long"


def writing(
    broker: Broker, topic: str, *splits: Sequence[Any], schema: str = SCHEMA, **options: Any
) -> Callable[[StreamEnvironment], None]:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing(None)
        env.set_restart_strategy(FixedDelay(attempts=3, delay_ms=1))
        sink = KafkaSink(topic, servers=broker.address, **options)
        env.from_source(ListSource(*splits), schema, uid="in").sink_to(sink, uid="out")

    return job


def rows(*numbers: int) -> list[Any]:
    return [{"n": n} for n in numbers]


def seen(broker: Broker, topic: str, partitions: int = 1) -> list[int]:
    return sorted(json.loads(value)["n"] for value in topics.values(broker, topic, partitions))


def test_the_rows_of_a_job_are_in_the_topic_once(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    run(writing(kafka, topic, [*rows(1, 2), Checkpoint(), *rows(3)]))
    assert seen(kafka, topic) == [1, 2, 3]


def test_readers_see_the_rows_of_an_epoch_once_it_is_committed(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    job = writing(kafka, topic, [*rows(1, 2), Checkpoint(), *rows(3), Checkpoint()])
    started = run(job, until=lambda at: at.epochs == 1)
    assert seen(kafka, topic) in ([], [1, 2])
    started.run(lambda: started.epochs == 2)
    assert seen(kafka, topic)[:2] == [1, 2]


def test_after_a_crash_each_row_is_in_the_topic_once(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    ended = run(writing(kafka, topic, [*rows(1), Checkpoint(), *rows(2), Crash(), *rows(3), Checkpoint(), Crash()]))
    assert ended.restarts == 2
    assert seen(kafka, topic) == [1, 2, 3]


def test_a_job_goes_on_at_another_parallelism_and_with_other_code(kafka: Broker, topic: str) -> None:
    """The first run ends with a published epoch; its rows are in the topic once, whoever committed them."""
    topics.create(kafka, topic, 3)
    first = [*rows(1, 2), Checkpoint(), *rows(5)]
    second = [*rows(3, 4), Checkpoint(), *rows(6)]
    stopped = run(writing(kafka, topic, first, second), until=lambda at: at.epochs == 1)
    run(writing(kafka, topic, first, second, key="n"), parallelism=2, after=stopped)
    assert seen(kafka, topic, 3) == [1, 2, 3, 4, 5, 6]


def test_the_files_of_rows_that_were_sent_are_deleted(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    job = writing(kafka, topic, [*rows(1), Checkpoint(), *rows(2), Crash(), *rows(3), Checkpoint(), *rows(4)])
    ended = run(job)
    left = ended.store.list(f"{ended.paths.job}/outbox")
    assert len(left) <= 1  # the last epoch's, unless there was time to tidy


def test_keys_headers_times_and_partitions_come_from_columns(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic, 3)
    header = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    row = {"who": "x", "n": 7, "kafka_partition": 2, "kafka_timestamp": 1_700_000_000_123, "kafka_headers": header}
    none = {"who": None, "n": 8, "kafka_partition": 1, "kafka_timestamp": None, "kafka_headers": None}
    schema = (
        "who string, n long, kafka_partition int, kafka_timestamp long, "
        "kafka_headers array<struct<key: string, value: binary>>"
    )
    run(writing(kafka, topic, [row, none], schema=schema, key="who"))
    without, got = topics.records(kafka, topic, 3)
    assert (got.partition(), got.timestamp()[1], got.key()) == (2, 1_700_000_000_123, b"x")
    assert got.headers() == [("a", b"1"), ("b", None)]
    assert json.loads(got.value()) == {"who": "x", "n": 7}
    assert (without.partition(), without.key(), without.headers()) == (1, None, None)


def test_values_can_be_bytes(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    items = [{"key": "k", "value": b"\xff\n"}, {"key": "k", "value": None}]
    run(writing(kafka, topic, items, schema="key string, value binary", key="key", value=Bytes()))
    assert topics.values(kafka, topic) == [b"\xff\n", None]


def test_what_the_sink_writes_the_source_reads(kafka: Broker, topic: str) -> None:
    from engine.connectors.table import TableSink

    topics.create(kafka, topic)
    schema = "a string, t timestamp, d double, l array<int>, s struct<x: int>, b boolean"
    from datetime import UTC, datetime

    row = {
        "a": 'quote " newline \n ü',
        "t": datetime(2023, 11, 14, 22, 13, 20, 5000, tzinfo=UTC),
        "d": 0.1,
        "l": [1, 2],
        "s": {"x": None},
        "b": True,
    }
    run(writing(kafka, topic, [row, dict.fromkeys(row)], schema=schema))

    def reading(env: StreamEnvironment) -> None:
        source = KafkaSource(topic, servers=kafka.address, until="latest")
        env.from_source(source, schema, uid="in").sink_to(TableSink("out"), uid="out")

    assert run(reading).rows("out") == [{**row, "t": row["t"]}, {**dict.fromkeys(row), "s": None}]


def test_an_epoch_of_many_slices_is_sent_whole(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)

    def job(env: StreamEnvironment) -> None:
        sink = KafkaSink(topic, servers=kafka.address)
        (
            env.from_elements(rows(*range(50)), SCHEMA)
            .flat_map(lambda row: [{"n": row["n"] * 1000 + i} for i in range(1000)], schema=SCHEMA)
            .sink_to(sink, uid="out")
        )

    run(job)
    assert seen(kafka, topic) == list(range(50_000))


def test_without_transactions_rows_may_be_doubled_but_none_is_lost(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    job = writing(
        kafka,
        topic,
        [*rows(1), Checkpoint(), *rows(2), Crash(), *rows(3)],
        guarantee=Guarantee.AT_LEAST_ONCE,
    )
    run(job)
    assert set(seen(kafka, topic)) == {1, 2, 3}


# --- what goes wrong ---


def test_an_unknown_topic_is_named(kafka: Broker, topic: str) -> None:
    with pytest.raises(JobFailed, match=f"there is no topic '{topic}': create it"):
        run(writing(kafka, topic, rows(1)))


def test_a_record_over_the_limit_of_the_topic_ends_the_job_before_its_epoch_is_published(
    kafka: Broker, topic: str
) -> None:
    topics.create(kafka, topic, **{"max.message.bytes": "2000"})
    items = [{"a": "x"}, Checkpoint(), {"a": "y" * 3000}]
    said = rf"topic '{topic}' takes records of 2000 bytes at most .*, and one has 6\d\d\d; its key is b'y"
    with pytest.raises(JobFailed, match=said):
        run(writing(kafka, topic, items, schema="a string", key="a"))
    assert topics.values(kafka, topic) == [b'{"a":"x"}']


def test_a_transaction_timeout_that_the_brokers_do_not_allow_is_refused_at_the_start(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    with pytest.raises(JobFailed, match=r"transaction_timeout is 3600 s, and the brokers allow 900 s"):
        run(writing(kafka, topic, rows(1), transaction_timeout="1 h"))


def test_a_broker_that_is_away_at_a_commit_costs_no_row(
    tmp_path: Path, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed behind the first epoch, and comes back while the job tries to commit the second one."""
    for module in (client, producing, transactions):
        monkeypatch.setattr(module, "ANSWER_S", 1.0)
    for module in (producing, transactions):
        monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    with running(tmp_path / "kafka") as broker:
        topics.create(broker, topic)
        items = [*rows(1, 2), Checkpoint(), *rows(3), Checkpoint(), *rows(4)]
        started = run(writing(broker, topic, items), until=lambda at: at.epochs == 1)
        broker.kill()
        started.run(lambda: "does not answer" in caplog.text)
        broker.start()
        started.run()
        assert seen(broker, topic) == [1, 2, 3, 4]
        assert f"the sink of topic '{topic}' waits: Kafka at {broker.address} does not answer" in caplog.text
