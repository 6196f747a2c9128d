"""Clients of a Kafka cluster: how they are set up, what their errors mean, and what is said while no broker answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.core.errors import WeirError
from engine.protocol.failures import Fault

if TYPE_CHECKING:
    import confluent_kafka

logger = logging.getLogger("weir.kafka")

ANSWER_S = 10.0
"""How long one request to the brokers may take. What needs an answer asks again later."""

SAY_EVERY_S = 10.0
"""While no broker answers, a warning says so this often."""


class KafkaError(WeirError):
    """Kafka refuses what the job asks for. Only a person can choose."""


class KafkaAway(WeirError):
    """No broker, or no registry, answers now. It is asked again."""

    fault = Fault.OUTSIDE


def library() -> Any:
    """Imports confluent_kafka: only who talks to brokers loads it."""
    import confluent_kafka
    import confluent_kafka.admin

    return confluent_kafka


@dataclass(frozen=True)
class Cluster:
    """The brokers of a cluster, and how to talk to them. `settings` are librdkafka's, such as those for passwords."""

    servers: str
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def consumer(self, group: str, told: Told) -> confluent_kafka.Consumer:
        """Returns a consumer that is given its partitions, reads committed records only, and stores no offsets."""
        settings = {
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 16 << 10,  # for each partition
            "isolation.level": "read_committed",
            **self._common(told),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
        consumer: confluent_kafka.Consumer = self._made(library().Consumer, settings)
        return consumer

    def producer(self, told: Told, **settings: Any) -> confluent_kafka.Producer:
        """Returns a producer that spreads keys over partitions as Kafka's own clients do."""
        all_settings = {"partitioner": "murmur2_random", "linger.ms": 5, **self._common(told), **settings}
        producer: confluent_kafka.Producer = self._made(library().Producer, all_settings)
        return producer

    def admin(self, told: Told) -> Any:
        return self._made(library().admin.AdminClient, self._common(told))

    def _made(self, kind: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
        try:
            return kind(settings)
        except library().KafkaException as error:
            raise KafkaError(f"Kafka's client does not take its settings: {error.args[0].str().strip()}") from error

    def _common(self, told: Told) -> dict[str, Any]:
        quiet = {"log_level": 2, "log.connection.close": False}  # `Told` says what a person needs to know
        return {
            **quiet,
            "reconnect.backoff.max.ms": 1000,
            **self.settings,
            "bootstrap.servers": self.servers,
            "error_cb": told.on_error,
        }


class Told:
    """What the client's own threads report about the brokers: whether they answer, and whether they refuse this user.

    `who` says who waits, as in "source 'orders'". The client calls `on_error` from whichever thread polls it.
    """

    def __init__(self, who: str, servers: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._who = who
        self._servers = servers
        self._clock = clock
        self._away_since: float | None = None
        self._said_at: float | None = None
        self._refused: str | None = None

    @property
    def away(self) -> bool:
        return self._away_since is not None

    def on_error(self, error: Any) -> None:
        of = library().KafkaError
        if error.code() in (of._AUTHENTICATION, of.SASL_AUTHENTICATION_FAILED):
            self._refused = error.str()
        elif error.code() == of._ALL_BROKERS_DOWN:
            self.is_away("all brokers are down")
        elif error.code() in (of._TRANSPORT, of._RESOLVE):
            self.is_away(error.str())

    def is_away(self, why: str) -> None:
        now = self._clock()
        if self._away_since is None:
            self._away_since = now
        if self._said_at is None or now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            waited = f" for {now - self._away_since:.0f} s" if now - self._away_since >= 1 else ""
            logger.warning("%s waits: Kafka at %s does not answer%s (%s)", self._who, self._servers, waited, why)

    def answers(self) -> None:
        if self._away_since is not None:
            gone_s = self._clock() - self._away_since
            logger.warning("%s goes on: Kafka at %s answers again, after %.0f s", self._who, self._servers, gone_s)
        self._away_since = self._said_at = None

    def check(self) -> None:
        """Raises a KafkaError if the brokers have refused the credentials."""
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise KafkaError(
                f"{self._who}: Kafka at {self._servers} refuses the credentials: {refused}. Give the right ones, as in "
                "settings={'security.protocol': 'SASL_SSL', 'sasl.mechanism': 'PLAIN', 'sasl.username': ..., "
                "'sasl.password': ...}"
            )


def is_away(error: Any) -> bool:
    """Says whether a client's error means that nobody answers now, so that asking again may help."""
    of = library().KafkaError
    return error.retriable() or error.code() in (
        of._ALL_BROKERS_DOWN,
        of._TRANSPORT,
        of._TIMED_OUT,
        of._RESOLVE,
        of._TIMED_OUT_QUEUE,
        of._WAIT_COORD,
        of.REQUEST_TIMED_OUT,
        of.NOT_COORDINATOR,
        of.COORDINATOR_NOT_AVAILABLE,
        of.COORDINATOR_LOAD_IN_PROGRESS,
        of.LEADER_NOT_AVAILABLE,
        of.BROKER_NOT_AVAILABLE,
    )


def asked(told: Told, what: str, ask: Callable[[], Any], idle: Any = None) -> Any:
    """Asks the brokers. Raises a KafkaAway if nobody answers, and a KafkaError if they refuse.

    `idle`: a client that reads nothing. A client tells what it has heard only when it is polled, and that of a source
    would give records then.
    """
    kafka = library()
    try:
        answer = ask()
    except kafka.KafkaException as error:
        if idle is not None:
            idle.poll(0)
        told.check()
        if is_away(error.args[0]):
            told.is_away(error.args[0].str())
            raise KafkaAway(f"{what}: {error.args[0].str()}") from error
        raise KafkaError(f"{what}: {error.args[0].str()}") from error
    told.answers()
    return answer


def described(client: Any, topic: str, told: Told, idle: bool = True) -> Any:
    """Returns what the brokers say about a topic and themselves; raises a KafkaError if there is no such topic.

    `idle`: the client reads nothing.
    """
    kafka = library()
    served = client if idle else None
    metadata = asked(told, f"topic {topic!r}", lambda: client.list_topics(topic, timeout=ANSWER_S), served)
    error = metadata.topics[topic].error
    if error is not None and error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise KafkaError(
            f"there is no topic {topic!r}: create it, as in kafka-topics.sh --create --topic {topic} --partitions 4, "
            "or mend its name"
        )
    if error is not None and is_away(error):
        raise KafkaAway(f"topic {topic!r}: {error.str()}")
    if error is not None:
        raise KafkaError(f"topic {topic!r} can't be used: {error.str()}")
    return metadata
