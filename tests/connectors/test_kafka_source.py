"""The Kafka source, with a real broker: where it begins and ends, what its rows are, and how it goes on.

Jobs run in one process (`engine.testing`). Checks: each record is in the table exactly once, in the order of its
partition, whatever dies; positions are offsets.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from engine.api import FixedDelay, JobError, StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count
from engine.connectors.kafka import MALFORMED, Avro, Bytes, KafkaSink, KafkaSource, Registry, client, fetching
from engine.connectors.kafka.rows import Chunk
from engine.connectors.kafka.splits import KafkaSplit, owner
from engine.connectors.table import TableSink
from engine.host.system import QueueOffload
from engine.testing import JobFailed, LocalRun, _Killed, run
from tests.connectors import kafka_topics as topics
from tests.fakes import source_context
from tests.servers.kafka import Broker, running
from tests.servers.registry import SchemaRegistry

pytestmark = pytest.mark.promise("G2")

SCHEMA = "n long"


def numbers(first: int, last: int) -> list[bytes]:
    return [b'{"n": %d}' % n for n in range(first, last)]


def source(broker: Broker, topic: str, **options: Any) -> KafkaSource:
    return KafkaSource(topic, servers=broker.address, **options)


def copying(of: KafkaSource, schema: str = SCHEMA, dying: Any = None) -> Callable[[StreamEnvironment], None]:
    """A job that copies the topic into the table `out`, with a checkpoint every few steps."""

    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("5 ms")
        env.set_restart_strategy(FixedDelay(attempts=5, delay_ms=1))
        stream = env.from_source(of, schema, uid="in")
        (stream if dying is None else stream.map_batches(dying)).sink_to(TableSink("out"), uid="out")

    return job


def read(of: KafkaSource, schema: str = SCHEMA, **options: Any) -> list[dict[str, Any]]:
    return run(copying(of, schema), **options).rows("out")


def has(rows: int) -> Callable[[LocalRun], bool]:
    return lambda at: len(out(at)) >= rows


def out(at: LocalRun) -> list[dict[str, Any]]:
    try:
        return at.rows("out")
    except FileNotFoundError:  # nothing was published yet
        return []


def n_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["n"] for row in rows]


# --- where it begins and ends ---


def test_a_bounded_job_reads_up_to_the_end_as_it_was_at_its_start(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic, 3)
    for partition in range(3):
        topics.put(kafka, topic, numbers(partition * 10, partition * 10 + 10), partition)
    rows = read(source(kafka, topic, until="latest"), parallelism=2)
    assert sorted(n_of(rows)) == list(range(30))


def test_a_job_begins_and_ends_at_given_offsets(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic, 2)
    topics.put(kafka, topic, numbers(0, 10), 0)
    topics.put(kafka, topic, numbers(100, 105), 1)
    rows = read(source(kafka, topic, start={0: 4}, until={topic: {0: 7}}))
    assert sorted(n_of(rows)) == [4, 5, 6, 100, 101, 102, 103, 104]


def test_a_job_begins_and_ends_at_times(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    for n in range(5):
        topics.put(kafka, topic, numbers(n, n + 1), timestamp=1_700_000_000_000 + n * 1000)
    first, last = (datetime.fromtimestamp(1_700_000_000 + n, UTC) for n in (1, 3))
    assert n_of(read(source(kafka, topic, start=first, until=last))) == [1, 2]


def test_a_job_that_begins_at_the_latest_record_reads_only_what_comes_later(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, numbers(0, 10))
    started = run(copying(source(kafka, topic, start="latest")), until=lambda at: at.epochs > 0)
    topics.put(kafka, topic, numbers(10, 15))
    assert n_of(started.run(lambda: has(5)(started)).rows("out")) == [10, 11, 12, 13, 14]


def test_a_job_begins_where_its_group_has_come_to(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, numbers(0, 10))
    read(source(kafka, topic, until={0: 6}, group=topic))
    topics.wait_until_committed(kafka, topic, topic, 6)
    assert n_of(read(source(kafka, topic, start="group", group=topic, until="latest"))) == [6, 7, 8, 9]


def test_the_end_of_an_aborted_transaction_is_the_end_of_a_bounded_job(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, numbers(0, 3))
    producer = Producer(kafka.client(**topics.QUIET, **{"transactional.id": topic}))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value=b'{"n": -1}')
    producer.abort_transaction(30)
    assert n_of(read(source(kafka, topic, until="latest"))) == [0, 1, 2]


def test_records_of_an_open_transaction_are_read_once_it_commits(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, numbers(0, 3))
    producer = Producer(kafka.client(**topics.QUIET, **{"transactional.id": topic}))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value=b'{"n": 3}')
    producer.flush(30)
    topics.put(kafka, topic, numbers(4, 5))
    started = run(copying(source(kafka, topic)), until=lambda at: has(3)(at) and at.epochs > 3)
    assert n_of(started.rows("out")) == [0, 1, 2]
    producer.commit_transaction(30)
    assert n_of(started.run(lambda: has(5)(started)).rows("out")) == [0, 1, 2, 3, 4]


# --- how it goes on ---


class Dying:
    """Kills its process at this batch, once."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.left -= 1
        if self.left == 0:
            raise _Killed
        return batch


def test_after_crashes_each_record_is_read_once_in_order(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, numbers(0, 20_000))
    job = copying(source(kafka, topic, until="latest"), dying=Dying(3))
    ended = run(job)
    assert ended.restarts == 1
    assert n_of(ended.rows("out")) == list(range(20_000))


def test_a_job_goes_on_from_its_snapshot_at_another_parallelism(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic, 4)
    for partition in range(4):
        topics.put(kafka, topic, numbers(partition * 100, partition * 100 + 50), partition)
    job = copying(source(kafka, topic))
    first = run(job, parallelism=1, until=has(200))
    for partition in range(4):
        topics.put(kafka, topic, numbers(partition * 100 + 50, partition * 100 + 100), partition)
    second = run(job, parallelism=3, after=first, until=has(400))
    assert sorted(n_of(second.rows("out"))) == list(range(400))


def test_a_job_that_began_at_the_latest_record_misses_nothing_when_it_goes_on(kafka: Broker, topic: str) -> None:
    """The snapshot has the offset at which the job began, also if it has read nothing."""
    topics.create(kafka, topic)
    topics.put(kafka, topic, numbers(0, 5))
    job = copying(source(kafka, topic, start="latest"))
    first = run(job, until=lambda at: at.epochs > 0)
    topics.put(kafka, topic, numbers(5, 8))
    assert n_of(run(job, after=first, until=has(3)).rows("out")) == [5, 6, 7]


def test_partitions_that_are_added_while_the_job_runs_are_read_from_their_beginning(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, numbers(0, 3))
    started = run(copying(source(kafka, topic, start="latest", discover="20 ms")), until=lambda at: at.epochs > 0)
    topics.grow(kafka, topic, 3)
    topics.put(kafka, topic, numbers(10, 12), 1)
    topics.put(kafka, topic, numbers(20, 22), 2)
    assert sorted(n_of(started.run(lambda: has(4)(started)).rows("out"))) == [10, 11, 20, 21]


def test_the_group_hears_how_far_completed_checkpoints_have_come(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, numbers(0, 7))
    run(copying(source(kafka, topic, until="latest")))
    topics.wait_until_committed(kafka, "weir-test-in", topic, 7)


def with_app(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("app", pa.repeat("a", batch.num_rows))


def test_each_partition_has_a_watermark_and_an_idle_one_holds_nothing_back(kafka: Broker, topic: str) -> None:
    """Partition 0 is ten minutes ahead of partition 1, and partition 2 is empty."""
    topics.create(kafka, topic, 3)
    topics.put(kafka, topic, [b'{"n": %d}' % (600_000 + n * 1000) for n in range(20)], 0)
    topics.put(kafka, topic, [b'{"n": %d}' % (n * 1000) for n in range(20)], 1)
    late_free = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("n").with_idleness("50 ms")

    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("5 ms")
        (
            env.from_source(source(kafka, topic), "n long", uid="in")
            .assign_timestamps_and_watermarks(late_free)
            .map_batches(
                lambda batch: batch.append_column("app", pa.repeat("a", batch.num_rows)), schema="n long, app string"
            )
            .key_by("app")
            .window(TumblingEventTimeWindows.of("10 s"))
            .aggregate(pv=count(), uid="pv")
            .sink_to(TableSink("out"), uid="out")
        )

    rows = run(job, until=has(3)).rows("out")
    assert [row["pv"] for row in rows] == [10, 10, 10]


def test_a_partition_that_waits_for_another_one_is_not_fetched_without_end(
    kafka: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 0 is far ahead and waits by its alignment, with a full buffer; all records arrive in the end."""
    monkeypatch.setattr(fetching, "FETCH_ROWS", 50)
    monkeypatch.setattr(fetching, "BUFFERED_ROWS", 100)
    most = [0]
    take = fetching.KafkaReader.take

    def watched(reader: fetching.KafkaReader, chunk: Chunk) -> None:
        take(reader, chunk)
        if reader.split.partition == 0:
            most[0] = max(most[0], sum(one.rows.num_rows for one in reader._chunks))

    monkeypatch.setattr(fetching.KafkaReader, "take", watched)
    topics.create(kafka, topic, 2)
    topics.put(kafka, topic, [b'{"n": %d}' % (n * 100 if n < 10 else 10_000_000 + n) for n in range(1000)], 0)
    topics.put(kafka, topic, [b'{"n": %d}' % (n * 100) for n in range(1000)], 1)
    strategy = (
        WatermarkStrategy.for_monotonous_timestamps().with_timestamps("n").with_watermark_alignment("g", "1 s", "10 ms")
    )

    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("5 ms")
        stream = env.from_source(source(kafka, topic, until="latest"), SCHEMA, uid="in")
        stream.assign_timestamps_and_watermarks(strategy).sink_to(TableSink("out"), uid="out")

    assert len(run(job).rows("out")) == 2000
    assert 100 <= most[0] <= 150


# --- what a row is ---


def test_keys_headers_times_and_places_are_columns(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, numbers(5, 6), key=b"k", headers=[("a", b"1"), ("a", None)], timestamp=1_700_000_000_000)
    schema = (
        "kafka_key string, n long, kafka_timestamp timestamp, kafka_topic string, kafka_partition int, "
        "kafka_offset long, kafka_headers array<struct<key: string, value: binary>>"
    )
    (row,) = read(source(kafka, topic, until="latest"), schema)
    assert row["kafka_timestamp"].timestamp() == 1_700_000_000
    del row["kafka_timestamp"]
    assert row == {
        "kafka_key": "k",
        "n": 5,
        "kafka_topic": topic,
        "kafka_partition": 0,
        "kafka_offset": 0,
        "kafka_headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
    }


def test_values_can_be_taken_as_they_are(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, [b"\xff\x00", b"", None])
    rows = read(source(kafka, topic, value=Bytes(), until="latest"), "value binary")
    assert [row["value"] for row in rows] == [b"\xff\x00", b"", None]


def test_a_record_without_value_is_a_row_of_nulls(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, [b'{"n": 1}', None, b'{"n": 2}'], key=b"k")
    rows = read(source(kafka, topic, until="latest"), "n long, kafka_key string")
    assert rows == [{"n": n, "kafka_key": "k"} for n in (1, None, 2)]


BAD = [b'{"n": 1}', b'{"n": "x"}', b"", b'{"n": 2} {"n": 3}', b'{"n":', b" 4}", b"\xff", b"null", b'{"n": 5}']


def test_bad_records_are_skipped_one_by_one(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, BAD)
    assert n_of(read(source(kafka, topic, until="latest", malformed="skip"))) == [1, 5]


def test_bad_records_go_to_a_side_output_with_their_partition_and_offset(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, BAD)

    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("5 ms")
        stream = env.from_source(source(kafka, topic, until="latest", malformed="dead_letter"), SCHEMA, uid="in")
        stream.get_side_output(MALFORMED).sink_to(TableSink("bad"), uid="bad")
        stream.sink_to(TableSink("out"), uid="out")

    ended = run(job)
    bad = ended.rows("bad")
    assert [(row["file"], row["line"]) for row in bad] == [(f"{topic}[0]", offset) for offset in range(1, 8)]
    assert bad[0]["text"] == '{"n": "x"}'
    assert all(row["reason"] for row in bad)


def test_a_bad_record_ends_the_job_with_its_place_and_the_choices(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, BAD)
    with pytest.raises(JobFailed, match=rf"{topic}\[0\], offset 1: .*malformed=\"skip\""):
        read(source(kafka, topic, until="latest"))


# --- what goes wrong ---


@pytest.mark.parametrize(("policy", "expected"), [("earliest", [5, 6, 7]), ("latest", [])])
def test_a_position_that_is_gone_is_replaced_as_the_job_says(
    kafka: Broker, topic: str, policy: Any, expected: list[int]
) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, numbers(0, 8))
    topics.forget(kafka, topic, 5)
    rows = read(source(kafka, topic, start={0: 2}, until="latest", out_of_range=policy))
    assert n_of(rows) == expected


def test_a_topic_that_was_made_anew_is_read_from_its_beginning_with_its_bad_records(kafka: Broker, topic: str) -> None:
    """The next offset is behind the end of the topic."""
    topics.create(kafka, topic)
    topics.put(kafka, topic, [b'{"n": 1}', b"x", b'{"n": 2}'])

    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("5 ms")
        anew = source(kafka, topic, start={0: 100}, malformed="dead_letter", out_of_range="earliest")
        stream = env.from_source(anew, SCHEMA, uid="in")
        stream.get_side_output(MALFORMED).sink_to(TableSink("bad"), uid="bad")
        stream.sink_to(TableSink("out"), uid="out")

    ended = run(job, until=has(2))
    assert n_of(ended.rows("out")) == [1, 2]
    assert [row["line"] for row in ended.rows("bad")] == [1]


def test_a_position_that_is_gone_ends_the_job_with_its_place_and_the_choices(kafka: Broker, topic: str) -> None:
    topics.create(kafka, topic)
    topics.put(kafka, topic, numbers(0, 8))
    topics.forget(kafka, topic, 5)
    gone = rf"{topic}\[0\] has no offset 2 any more: it has those from 5 to 8.*out_of_range='earliest'"
    with pytest.raises(JobFailed, match=gone):
        read(source(kafka, topic, start={0: 2}, until="latest"))


def test_an_unknown_topic_ends_the_job_and_is_named(kafka: Broker, topic: str) -> None:
    with pytest.raises(JobFailed, match=f"there is no topic '{topic}': create it"):
        read(source(kafka, topic, until="latest"))


def test_a_registry_that_is_away_makes_the_job_wait_and_loses_nothing(
    kafka: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = SchemaRegistry()
    schema = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]}
    registry.avro(1, schema)
    registry.away = 2
    topics.create(kafka, topic)
    topics.put(kafka, topic, [b"\x00\x00\x00\x00\x01" + bytes([2 * n]) for n in range(20)])
    with registry.running() as url:
        ended = run(copying(source(kafka, topic, value=Avro(Registry(url)), until="latest")))
    assert n_of(ended.rows("out")) == list(range(20))
    assert ended.restarts == 0
    assert registry.requests == ["/schemas/ids/1"] * 3
    assert "source 'in' waits: the schema registry at" in caplog.text


# --- brokers that are away ---


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Broker]:
    """A broker that the test may kill."""
    with running(tmp_path / "kafka") as broker:
        yield broker


def test_a_broker_that_is_killed_and_comes_back_costs_no_record_and_no_restart(
    own: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    topics.create(own, topic)
    topics.put(own, topic, numbers(0, 10))
    started = run(copying(source(own, topic)), until=has(10))
    own.kill()
    started.run(lambda: "Kafka at 127.0.0.1" in caplog.text)  # until the source has noticed
    assert f"source 'in' waits: Kafka at {own.address} does not answer" in caplog.text
    own.start()
    topics.put(own, topic, numbers(10, 20))
    started.run(lambda: has(20)(started))
    assert n_of(out(started)) == list(range(20))
    assert started.restarts == 0
    assert f"source 'in' goes on: Kafka at {own.address} answers again" in caplog.text


def test_a_job_that_starts_before_its_broker_waits_for_it(
    own: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    topics.create(own, topic)
    topics.put(own, topic, numbers(0, 3))
    own.kill()
    started = run(copying(source(own, topic)), until=lambda at: "does not answer" in caplog.text)
    own.start()
    started.run(lambda: has(3)(started))
    assert n_of(out(started)) == [0, 1, 2]
    assert started.restarts == 0


def test_wrong_credentials_end_the_job_and_the_message_says_what_to_give(
    tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 2.0)
    with running(tmp_path / "kafka", sasl=True) as broker:
        right = {name: value for name, value in broker.client().items() if name != "bootstrap.servers"}
        topics.create(broker, topic)
        topics.put(broker, topic, numbers(0, 3))
        assert n_of(read(source(broker, topic, until="latest", settings=right))) == [0, 1, 2]
        wrong = {**right, "sasl.password": "guess"}
        said = rf"source 'in': Kafka at {broker.address} refuses the credentials: .*settings=\{{'security.protocol'"
        with pytest.raises(JobFailed, match=said):
            read(source(broker, topic, until="latest", settings=wrong))


# --- how it is written ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"start": "begin"}, "start='begin': write 'earliest', 'latest', 'group', a datetime"),
        ({"start": datetime(2023, 11, 14)}, "start=.* has no zone"),
        ({"start": {"other": {0: 1}}}, "start names the topic 'other'"),
        ({"start": {0: -1}}, "write numbers of partitions and offsets"),
        ({"start": "group"}, "start='group' needs the name of a group"),
        ({"until": "earliest"}, "until='earliest': write 'latest'"),
        ({"malformed": "drop"}, "malformed='drop'"),
        ({"out_of_range": "skip"}, "out_of_range='skip'"),
        ({"discover": 0}, "discover=0: looking without a pause"),
        ({"value": "json"}, r"value='json': write Json\(\)"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        KafkaSource("t", servers="127.0.0.1:1", **options)


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ("kafka_key long", None, "column 'kafka_key' can't be int64: it is binary or string"),
        ("kafka_headers map<string, string>", None, "'kafka_headers' can't be .*: it is array<struct<key"),
        ("a binary", None, "JSON can't be read as binary"),
        ("a binary", Bytes(), "values as bytes are one column 'value' of binary or string"),
    ],
)
def test_schemas_that_can_not_be_read_are_refused_before_the_job_starts(schema: str, value: Any, said: str) -> None:
    env = StreamEnvironment()
    with pytest.raises(JobError, match=said):
        env.from_source(KafkaSource("t", servers="127.0.0.1:1", value=value), schema, uid="in")


def test_without_the_library_a_job_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(
        JobError, match=r"KafkaSource needs the library confluent_kafka, .*: pip install 'weir\[kafka\]'"
    ):
        KafkaSource("t", servers="127.0.0.1:1")
    with pytest.raises(JobError, match=r"KafkaSink needs .* pip install 'weir\[kafka\]'"):
        KafkaSink("t", servers="127.0.0.1:1")


@given(
    topic=st.text("abc.-_[] ", min_size=1),
    partition=st.integers(0, 10**6),
    start=st.integers(0, 2**62),
    end=st.none() | st.integers(0, 2**62),
)
def test_the_name_of_a_split_tells_all_of_it(topic: str, partition: int, start: int, end: int | None) -> None:
    split = KafkaSplit(topic, partition, start, end)
    assert KafkaSplit.of(split.id) == split


@given(st.integers(1, 20), st.integers(1, 40))
def test_each_partition_has_one_owner_and_they_are_spread_evenly(parallelism: int, partitions: int) -> None:
    owners = [owner("orders", partition, parallelism) for partition in range(partitions)]
    counts = [owners.count(subtask) for subtask in range(parallelism)]
    assert sum(counts) == partitions
    assert max(counts) - min(counts) <= 1


def test_the_example_of_the_page_does_what_it_says(kafka: Broker) -> None:
    for name in ("views", "pv"):
        topics.create(kafka, name)
    page = Path(__file__).parents[2] / "docs" / "kafka.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    known: dict[str, Any] = {}
    exec(example.replace("kafka1:9092,kafka2:9092", kafka.address).replace('"1 s"', '"5 ms"'), known)
    started = run(known["job"], until=lambda at: at.epochs > 0)
    views = [(0, "a"), (9, "a"), (3, "b"), (30, "a")]
    values = [b'{"app_id": "%s", "bytes": 1, "ts": "2023-11-14T22:13:%02dZ"}' % (who.encode(), s) for s, who in views]
    topics.put(kafka, "views", values, key=b"k")

    def results() -> list[Any]:
        return [(message.key(), json.loads(message.value())["pv"]) for message in topics.records(kafka, "pv")]

    started.run(lambda: started.epochs % 5 == 0 and len(results()) >= 2)
    assert sorted(results()) == [(b"a", 2), (b"b", 1)]


def test_with_real_threads_all_records_arrive_and_the_consumer_is_closed(kafka: Broker, topic: str) -> None:
    """As in a slot: fetches run beside the task thread, one at a time, and their results come back by a queue."""
    topics.create(kafka, topic, 2)
    for partition in range(2):
        topics.put(kafka, topic, numbers(partition * 50_000, partition * 50_000 + 50_000), partition)
    inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
    offload = QueueOffload(inbox.put, threads=2)
    of = source(kafka, topic, until="latest")
    context = source_context(pa.schema([("n", pa.int64())]), offload=offload)
    discovery = of.discovery(context, [])
    readers: list[Any] = []
    found: list[int] = []
    while not (discovery.finished and all(reader.finished for reader in readers)):
        readers += [of.reader(split, None, context) for split in discovery.poll()]
        for reader in readers:
            batch = reader.poll(1000)
            found += batch.column("n").to_pylist() if batch is not None else []
        with suppress(Empty):
            inbox.get(timeout=1)()
    assert sorted(found) == list(range(100_000))
    fetcher = readers[0].fetcher
    for reader in readers:
        reader.close()
    discovery.close()
    discovery.close()
    while fetcher._consumer is not None:
        inbox.get(timeout=30)()
