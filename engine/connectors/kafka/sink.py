"""`KafkaSink` writes records to a topic: by whole epochs in transactions, or at once and at least once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from engine.connectors.extras import needs_extra
from engine.connectors.kafka.client import Cluster, Told
from engine.connectors.kafka.committer import KafkaCommitter, file_name_of
from engine.connectors.kafka.json import Json
from engine.connectors.kafka.outgoing import RecordEncoder, Records, check_sizes, largest, packed
from engine.connectors.kafka.producing import Sending, limits
from engine.connectors.kafka.transactions import KafkaTarget
from engine.connectors.kafka.values import ValueFormat
from engine.core.durations import Duration, to_ms
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.core.sinks import (
    Committer,
    Found,
    GatheringWriter,
    Guarantee,
    NothingToCommit,
    Piece,
    Sink,
    SinkWriter,
    WriterContext,
)

ON_THEIR_WAY = 200_000
"""A sink without transactions sends rows at once, unless so many are on their way; then they wait for the barrier."""


class KafkaSink(Sink):
    """Writes records to a topic.

    `servers`: brokers to ask first. `value`: how values are written: `Json()` (an object of all columns) or `Bytes()`.
    `key`: the column with the keys; None: there are none. Columns named kafka_headers, kafka_timestamp and
    kafka_partition become what their names say, and are not in the value.

    `guarantee`: EXACTLY_ONCE sends each epoch in one transaction, which readers with isolation.level=read_committed see
    once, as a whole. AT_LEAST_ONCE sends records as they come; after a failure some come again.
    `transaction_timeout`: how long the brokers let a transaction of this sink be open: at least what the largest epoch
    takes to be sent. `markers`: the topic in which sinks note what they have sent.
    `settings`: more settings of librdkafka, such as those for passwords.
    """

    def __init__(
        self,
        topic: str,
        *,
        servers: str,
        key: str | None = None,
        value: ValueFormat | None = None,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        transaction_timeout: Duration = "5 min",
        markers: str = "weir-markers",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        needs_extra("confluent_kafka", "kafka", "KafkaSink")
        if not isinstance(topic, str) or not topic:
            raise ValueError(f"KafkaSink({topic!r}): write the name of a topic")
        if not isinstance(guarantee, Guarantee):
            raise ValueError(f"guarantee={guarantee!r}: write Guarantee.EXACTLY_ONCE or Guarantee.AT_LEAST_ONCE")
        if markers == topic:
            raise ValueError(f"markers={markers!r} is the topic itself: markers need a topic of their own")
        self._value = Json() if value is None else value
        if not isinstance(self._value, ValueFormat):
            raise ValueError(f"value={value!r}: write Json() or Bytes()")
        self.topic = topic
        self.guarantee = guarantee
        self._key = key
        self._cluster = Cluster(servers, dict(settings or {}))
        self._timeout_ms = to_ms(transaction_timeout, "transaction_timeout")
        if self._timeout_ms < 1000:
            raise ValueError(f"transaction_timeout={transaction_timeout!r}: write '1 s' or more")
        self._markers = markers

    @property
    def _name(self) -> str:
        return f"the sink of topic {self.topic!r}"

    def writer(self, context: WriterContext) -> SinkWriter:
        encoder = RecordEncoder(context.schema, self._value, self._key)
        told = Told(f"{self._name}, subtask {context.subtask}", self._cluster.servers)
        if self.guarantee is Guarantee.AT_LEAST_ONCE:
            return _PlainWriter(encoder, self.topic, self._cluster, told)
        return _EpochWriter(encoder, self.topic, self._cluster, told, context, self._folder(context.paths))

    def committer(self, store: Store, paths: JobPaths) -> Committer:
        told = Told(self._name, self._cluster.servers)
        if self.guarantee is Guarantee.AT_LEAST_ONCE:
            return _NothingInTransactions(self._cluster, self.topic, told)

        def target(job_id: str) -> KafkaTarget:
            id = f"weir-{job_id}-{self.topic}"
            return KafkaTarget(self._cluster, self.topic, id, paths.job, self._markers, self._timeout_ms, store, told)

        return KafkaCommitter(store, self._folder(paths), self._name, target)

    def _folder(self, paths: JobPaths) -> str:
        return paths.outbox(f"kafka-{self.topic}")

    @property
    def target(self) -> str:
        return f"the topic {self.topic!r}"


class _NothingInTransactions(NothingToCommit):
    def __init__(self, cluster: Cluster, topic: str, told: Told) -> None:
        self._cluster, self._topic, self._told = cluster, topic, told

    def look(self, job_id: str, epoch: int) -> Found:
        limits(self._cluster.admin(self._told), self._topic, self._told)
        return Found()


@dataclass
class _EpochWriter(GatheringWriter):
    """Encodes rows and keeps them for the epoch's transaction."""

    encoder: RecordEncoder
    topic: str
    cluster: Cluster
    told: Told
    context: WriterContext
    folder: str
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def _piece(self, batches: list[pa.RecordBatch], number: int, size: int) -> Piece:
        name = file_name_of(self.context.attempt, self.context.subtask, number)
        return _RecordFile(self, f"{self.folder}/{name}", batches, size)

    def most_bytes(self) -> int:
        """Returns the size of the largest record that the topic takes. Runs off the task thread."""
        if self.limit is None:
            self.limit = limits(self.cluster.admin(self.told), self.topic, self.told)["max.message.bytes"]
        return self.limit


@dataclass
class _RecordFile(Piece):
    writer: _EpochWriter
    path: str
    batches: list[pa.RecordBatch]
    size: int

    def persist(self) -> dict[str, Any]:
        writer, store = self.writer, self.writer.context.store
        table = pa.Table.from_batches(self.batches).combine_chunks()
        records = [writer.encoder.encode(batch) for batch in table.to_batches()]
        check_sizes(records, writer.most_bytes(), writer.topic)
        data = packed(records)
        store.write(self.path, data)
        store.sync([self.path])
        return {
            "path": self.path,
            "size": len(data),
            "topic": writer.topic,
            "rows": table.num_rows,
            "bytes": sum(one.bytes for one in records),
            "largest": largest(records),
        }


class _PlainWriter(SinkWriter):
    """Sends rows as they come. Those for which there is no room wait for the barrier, which waits for all of them."""

    def __init__(self, encoder: RecordEncoder, topic: str, cluster: Cluster, told: Told) -> None:
        self._encoder = encoder
        self.topic = topic
        self._waiting: list[Records] = []
        self._bytes = 0
        self._written = False
        settings = {"queue.buffering.max.messages": 2 * ON_THEIR_WAY, "enable.idempotence": True}
        self.sending = Sending(cluster.producer(told, **settings), told)

    def begin(self) -> None:
        self._waiting, self._bytes, self._written = [], 0, False

    def write(self, batch: pa.RecordBatch) -> None:
        records = self._encoder.encode(batch)
        self._written = True
        if self._waiting or not self.sending.offer(self.topic, records, ON_THEIR_WAY):
            self._waiting.append(records)
            self._bytes += batch.nbytes

    def pre_commit(self) -> Piece | None:
        return _Sent(self, self._waiting, self._bytes) if self._written else None

    @property
    def buffered_bytes(self) -> int:
        return self._bytes


@dataclass
class _Sent(Piece):
    writer: _PlainWriter
    waiting: list[Records]
    size: int

    def persist(self) -> dict[str, Any]:
        """Waits until the brokers have all rows. What was sent is not sent again if this is called again."""
        while self.waiting:
            self.writer.sending.send(self.writer.topic, self.waiting[0])
            self.waiting.pop(0)
        self.writer.sending.wait()
        return {}
