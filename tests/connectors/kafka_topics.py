"""Topics for tests: makes them, writes to them, and reads them as other people's clients do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.servers.kafka import Broker

QUIET = {"log_level": 2}


def admin(broker: Broker) -> AdminClient:
    return AdminClient(broker.client(**QUIET))


def create(broker: Broker, topic: str, partitions: int = 1, **config: str) -> None:
    client = admin(broker)
    for future in client.create_topics([NewTopic(topic, partitions, 1, config=config)]).values():
        future.result(30)


def grow(broker: Broker, topic: str, partitions: int) -> None:
    client = admin(broker)
    for future in client.create_partitions([NewPartitions(topic, partitions)]).values():
        future.result(30)


def forget(broker: Broker, topic: str, before: int, partition: int = 0) -> None:
    """Deletes the records before an offset."""
    client = admin(broker)
    for future in client.delete_records([TopicPartition(topic, partition, before)]).values():
        future.result(30)


def put(broker: Broker, topic: str, values: Iterable[bytes | None], partition: int = 0, **more: Any) -> None:
    producer = Producer(broker.client(**QUIET))
    for value in values:
        producer.produce(topic, value=value, partition=partition, **more)
    assert producer.flush(30) == 0


def wait_until_committed(broker: Broker, group: str, topic: str, offset: int) -> None:
    """Waits until a group says that it has come so far in partition 0."""
    consumer = Consumer(broker.client(**QUIET, **{"group.id": group}))
    found = None
    for _ in range(1000):
        (answer,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
        found = answer.offset
        if found == offset:
            break
    consumer.close()
    assert found == offset


def records(broker: Broker, topic: str, partitions: int = 1, **settings: Any) -> list[Any]:
    """Returns all records of a topic, as a `read_committed` reader sees them, unless `settings` say otherwise."""
    own: Mapping[str, Any] = {
        "group.id": "reader",
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        **QUIET,
        **settings,
    }
    consumer = Consumer(broker.client(**own))
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found, ended = [], set()
    while len(ended) < partitions:
        for message in consumer.consume(1000, 1.0):
            if message.error() is None:
                found.append(message)
                continue
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
    consumer.close()
    return found


def values(broker: Broker, topic: str, partitions: int = 1) -> list[bytes]:
    return [message.value() for message in records(broker, topic, partitions)]
