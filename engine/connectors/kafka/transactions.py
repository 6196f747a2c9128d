"""`KafkaTarget`: the transactions of one sink, and its marker in a compacted topic. `replay.py` says what they are for.

The marker is a record of the topic `weir-markers`: its key names the sink, its value the last epoch that was sent. It
stays for as long as the topic does, however long the job was stopped. Every sink has a transactional id of its own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from engine.connectors.kafka.client import (
    ANSWER_S,
    Cluster,
    KafkaAway,
    KafkaError,
    Told,
    asked,
    library,
    logger,
)
from engine.connectors.kafka.outgoing import unpacked
from engine.connectors.kafka.producing import PATIENCE_S, Sending, limits, raising
from engine.core.ports import Store
from engine.protocol.manifest import Committable

if TYPE_CHECKING:
    import confluent_kafka

MARKER_CONFIG = {"cleanup.policy": "compact", "segment.ms": "600000", "min.cleanable.dirty.ratio": "0.1"}
"""Old markers go soon, so that a start has little to read."""

MEASURED_BYTES = 8 << 20
"""An epoch of so many bytes says how fast this cluster takes them."""


class Marker(msgspec.Struct, frozen=True):
    """The value of a marker. `job` is for people who look."""

    epoch: int
    job: str


class KafkaTarget:
    """The transactions of one sink. `id` names it in the whole cluster: it has the id of the job in it."""

    def __init__(
        self, cluster: Cluster, topic: str, id: str, job: str, markers: str, timeout_ms: int, store: Store, told: Told
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._id = id
        self._job = job
        self._markers = markers
        self._timeout_ms = timeout_ms
        self._store = store
        self._told = told
        self._admin_client: Any = None
        self._sending: Sending | None = None
        self._begun_at = 0.0
        self._bytes = 0
        self._rate: float | None = None  # bytes a second, of the last large epoch

    def _admin(self) -> Any:
        if self._admin_client is None:
            self._admin_client = self._cluster.admin(self._told)
        return self._admin_client

    # --- limits ---

    def check(self, size: int = 0, largest: int = 0) -> None:
        """Raises a KafkaError if the brokers will not take a transaction of this size, with this largest record."""
        found = limits(self._admin(), self._topic, self._told)
        most_ms = found["transaction.max.timeout.ms"]
        if self._timeout_ms > most_ms:
            raise KafkaError(
                f"transaction_timeout is {self._timeout_ms / 1000:g} s, and the brokers allow {most_ms / 1000:g} s "
                "(transaction.max.timeout.ms): give the sink a shorter one, or raise theirs"
            )
        if largest > found["max.message.bytes"]:
            raise KafkaError(
                f"topic {self._topic!r} takes records of {found['max.message.bytes']} bytes at most "
                f"(max.message.bytes), and the epoch has one of {largest}. Raise the topic's limit: the epoch is "
                "published already, and its rows wait in the store"
            )
        if self._rate is not None and size / self._rate * 1000 > self._timeout_ms:
            raise self._too_slow(size, size / self._rate)

    def _too_slow(self, size: int, needed_s: float) -> KafkaError:
        return KafkaError(
            f"topic {self._topic!r}: an epoch of {size / 1e6:.0f} MB needs {needed_s:.0f} s, and transaction_timeout "
            f"is {self._timeout_ms / 1000:g} s. Nothing is lost: give the sink a longer transaction_timeout, for which "
            "the brokers' transaction.max.timeout.ms may have to be raised, or take checkpoints more often"
        )

    # --- the steps of a marked replay ---

    def fence(self) -> int | None:
        self._sending = None
        self._make_marker_topic()
        found = limits(self._admin(), self._topic, self._told)
        producer = self._cluster.producer(
            self._told,
            **{
                "transactional.id": self._id,
                "transaction.timeout.ms": self._timeout_ms,
                "delivery.timeout.ms": self._timeout_ms,
                "message.max.bytes": min(1_000_000_000, found["max.message.bytes"]),
                "queue.buffering.max.messages": 1_000_000,
            },
        )
        self._patiently("init_transactions", producer, lambda: producer.init_transactions(ANSWER_S))
        self._sending = Sending(producer, self._told)
        return self._read_marker()

    def begin(self) -> None:
        sending = self._open()
        self._begun_at, self._bytes = time.monotonic(), 0
        with raising(self._told, "begin_transaction"):
            sending.producer.begin_transaction()

    def send(self, committable: Committable) -> None:
        """Sends the records of one file. Only one file is in memory at a time."""
        sending, payload = self._open(), committable.payload
        try:
            data = self._store.read(payload["path"])
        except FileNotFoundError as error:
            raise KafkaError(
                f"the rows of an epoch are gone ({self._store.uri(payload['path'])}), and the topic {self._markers!r} "
                f"has no marker that says that they were sent to topic {self._topic!r}. Were the markers deleted, or "
                "does the sink write to another cluster now? Then give the sink another uid, and allow the job to drop "
                "the old one's state"
            ) from error
        for records in unpacked(data):
            sending.send(payload["topic"], records)
        self._bytes += payload["bytes"]
        self._check_time()

    def _check_time(self) -> None:
        """Raises a KafkaError if the brokers have ended the transaction by now."""
        spent_s = time.monotonic() - self._begun_at
        if spent_s * 1000 > self._timeout_ms:
            raise self._too_slow(self._bytes, spent_s)

    def mark(self, epoch: int) -> None:
        value = msgspec.json.encode(Marker(epoch, self._job))
        with raising(self._told, f"topic {self._markers!r}"):
            self._open().producer.produce(self._markers, key=self._id.encode(), value=value, partition=0)

    def commit(self) -> None:
        sending = self._open()
        sending.wait()
        self._check_time()
        self._patiently("commit_transaction", sending.producer, lambda: sending.producer.commit_transaction(ANSWER_S))
        spent_s = time.monotonic() - self._begun_at
        if self._bytes >= MEASURED_BYTES and spent_s > 0:
            self._rate = self._bytes / spent_s

    def give_up(self) -> None:
        sending, self._sending = self._sending, None
        if sending is None:
            return
        try:
            sending.producer.purge()
            sending.producer.abort_transaction(ANSWER_S)
        except Exception as error:  # the next fence aborts it
            logger.info("sink %s: a transaction was not aborted: %s", self._id, error)

    def _open(self) -> Sending:
        assert self._sending is not None, "a target is fenced before anything is sent"
        return self._sending

    def _patiently(self, what: str, producer: confluent_kafka.Producer, call: Any) -> None:
        """Repeats a call that may be repeated until it has an answer. Its effect is the same."""
        until = time.monotonic() + PATIENCE_S
        kafka = library()
        while True:
            try:
                call()
            except kafka.KafkaException as error:
                of = error.args[0]
                self._told.check()
                if of.retriable() and time.monotonic() < until:
                    self._told.is_away(f"{what}: {of.str()}")
                    continue
                with raising(self._told, what):
                    raise
            self._told.answers()
            return

    # --- the marker ---

    def _make_marker_topic(self) -> None:
        """Makes the topic of markers unless it exists. Who may not make topics has to have it made."""
        kafka = library()
        admin = self._admin()
        known = asked(self._told, "brokers", lambda: admin.list_topics(self._markers, timeout=ANSWER_S))
        if known.topics[self._markers].error is None:
            return
        topic = kafka.admin.NewTopic(self._markers, 1, -1, config=MARKER_CONFIG)
        (answer,) = admin.create_topics([topic], request_timeout=ANSWER_S).values()
        try:
            answer.result(ANSWER_S * 2)
        except kafka.KafkaException as error:
            if error.args[0].code() == kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                return
            raise KafkaError(
                f"the topic {self._markers!r} could not be made: {error.args[0].str()}. An exactly-once sink notes "
                "there which epochs it has sent. Have it made with one partition and cleanup.policy=compact"
            ) from error

    def _read_marker(self) -> int | None:
        """Returns the epoch of the newest committed marker.

        Our own transactions are over. One of another sink that is still open hides what was written behind it, so this
        waits for it; it lasts for its time-out at most.
        """
        kafka = library()
        place = kafka.TopicPartition(self._markers, 0, 0)
        end = self._end_of(place)
        newest: int | None = None
        at = 0
        consumer = self._cluster.consumer(f"weir-markers-{self._id}", self._told)
        try:
            consumer.assign([place])
            until = time.monotonic() + PATIENCE_S
            while at < end:
                for message in self._consumed(consumer):
                    error = message.error()
                    if error is None:
                        at = message.offset() + 1
                        if message.key() == self._id.encode():
                            newest = msgspec.json.decode(message.value(), type=Marker).epoch
                    elif error.code() == kafka.KafkaError._PARTITION_EOF:
                        at = max(at, message.offset())
                    elif error.code() == kafka.KafkaError._AUTO_OFFSET_RESET:
                        low, _ = consumer.get_watermark_offsets(place, timeout=ANSWER_S)
                        consumer.assign([kafka.TopicPartition(self._markers, 0, low)])
                    else:
                        raise KafkaError(f"topic {self._markers!r}: {error.str()}")
                self._told.check()
                if time.monotonic() > until:
                    raise KafkaAway(
                        f"the topic {self._markers!r} can't be read up to its end: a transaction of another job is "
                        "open there since a while. It ends with that job's transaction_timeout"
                    )
        finally:
            consumer.close()
        return newest

    @staticmethod
    def _consumed(consumer: confluent_kafka.Consumer) -> list[Any]:
        return list(consumer.consume(1000, 0.2))

    def _end_of(self, place: Any) -> int:
        """Returns the end of the topic, behind what open transactions have written, too."""
        own = Cluster(self._cluster.servers, {**self._cluster.settings, "isolation.level": "read_uncommitted"})
        consumer = own.consumer(f"weir-markers-{self._id}", self._told)
        try:
            what = f"topic {self._markers!r}"
            _, high = asked(self._told, what, lambda: consumer.get_watermark_offsets(place, timeout=ANSWER_S))
        finally:
            consumer.close()
        return int(high)
