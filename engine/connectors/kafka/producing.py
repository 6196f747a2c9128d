"""Sends records with a producer, in bounded memory, and reads the limits that the brokers set."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from engine.connectors.kafka.client import (
    ANSWER_S,
    KafkaAway,
    KafkaError,
    Told,
    asked,
    described,
    is_away,
    library,
)
from engine.connectors.kafka.outgoing import Records, messages
from engine.core.errors import RecordTooLarge

if TYPE_CHECKING:
    import confluent_kafka

PATIENCE_S = 60.0
"""A send or a commit waits so long for brokers that do not answer, and then fails. The job tries it again."""

Limits = dict[str, int]


def limits(admin: Any, topic: str, told: Told) -> Limits:
    """Returns what the brokers take: `max.message.bytes` of the topic, and `transaction.max.timeout.ms`.

    Raises a KafkaError if there is no such topic.
    """
    kafka = library()
    broker = min(described(admin, topic, told).brokers)
    kinds = kafka.admin.ResourceType
    wanted = {kinds.TOPIC: (topic, "max.message.bytes"), kinds.BROKER: (str(broker), "transaction.max.timeout.ms")}
    resources = [kafka.admin.ConfigResource(kind, name) for kind, (name, _) in wanted.items()]
    found: Limits = {}
    for resource, answer in admin.describe_configs(resources, request_timeout=ANSWER_S).items():
        what = f"the settings of {resource.name!r}"
        config = asked(told, what, lambda answer=answer: answer.result(ANSWER_S * 2))  # type: ignore[misc]
        _, name = wanted[resource.restype]
        found[name] = int(config[name].value)
    return found


class Sending:
    """Sends records of one topic with one producer, in their order. A failed delivery is raised by the next call."""

    def __init__(self, producer: confluent_kafka.Producer, told: Told) -> None:
        self.producer = producer
        self._told = told
        self._failed: Any = None

    def send(self, topic: str, records: Records) -> None:
        """Waits while more than the last slice is on its way."""
        for piece in records.slices():
            self.wait(piece.num_rows)
            self._queue(topic, messages(piece))

    def offer(self, topic: str, records: Records, most: int) -> bool:
        """Sends records without waiting; returns False, and sends nothing, if so many are on their way already."""
        self.producer.poll(0)
        if len(self.producer) + records.rows.num_rows > most:
            return False
        self._queue(topic, messages(records.rows))
        return True

    def wait(self, left: int = 0) -> None:
        """Waits until at most so many records are on their way. Raises a KafkaAway if they stay there."""
        until = time.monotonic() + PATIENCE_S
        while len(self.producer) > left:
            self.producer.poll(0.05)
            self._check()
            if time.monotonic() > until:
                raise KafkaAway(f"{len(self.producer)} records could not be sent within {PATIENCE_S:.0f} s")
        self.producer.poll(0)
        self._check()

    def _queue(self, topic: str, found: list[dict[str, Any]]) -> None:
        with raising(self._told, f"topic {topic!r}"):
            if found and "headers" in found[0]:  # batches have no headers
                for message in found:
                    pairs = message.pop("headers") or []
                    headers = [(pair["key"], pair["value"]) for pair in pairs]
                    self.producer.produce(topic, headers=headers, on_delivery=self._delivered, **message)
            else:
                self.producer.produce_batch(topic, found, on_delivery=self._delivered)
                if error := next((message["_error"] for message in found if "_error" in message), None):
                    raise library().KafkaException(error)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and self._failed is None:
            self._failed = error, message.topic(), message.partition()

    def _check(self) -> None:
        self._told.check()
        if self._failed is not None:
            (error, topic, partition), self._failed = self._failed, None
            raise meant(error, f"topic {topic!r}, partition {partition}")


@contextmanager
def raising(told: Told, what: str) -> Iterator[None]:
    """Makes Weir's errors of the client's."""
    try:
        yield
    except library().KafkaException as error:
        told.check()
        raise meant(error.args[0], what) from error


def meant(error: Any, what: str) -> KafkaAway | KafkaError | RecordTooLarge:
    """Returns the error that a client's error means."""
    of = library().KafkaError
    if error.code() in (of._FENCED, of.PRODUCER_FENCED, of.INVALID_PRODUCER_EPOCH, of.INVALID_PRODUCER_ID_MAPPING):
        return KafkaAway(f"{what}: another process has taken this sink's transactions over ({error.str()})")
    if error.code() in (of.MSG_SIZE_TOO_LARGE, of.RECORD_LIST_TOO_LARGE):
        return RecordTooLarge(
            f"{what}: a record is larger than the brokers take ({error.str()}). Raise the topic's max.message.bytes, "
            "or make the job emit smaller records"
        )
    if is_away(error) or error.code() in (of._MSG_TIMED_OUT, of._PURGE_QUEUE, of._PURGE_INFLIGHT):
        return KafkaAway(f"{what}: {error.str()}")
    return KafkaError(f"{what}: {error.str()}")
