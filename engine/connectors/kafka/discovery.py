"""Finds the partitions of one subtask while it runs, and the offsets between which it reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from engine.connectors.kafka.client import ANSWER_S, KafkaAway, asked, described, library, logger
from engine.connectors.kafka.fetching import Fetcher
from engine.connectors.kafka.splits import End, KafkaSplit, Start, given, owner
from engine.core.sources import Discovery, SourceContext

RETRY_MS = 1000.0
"""The pause before brokers that did not answer are asked again."""


@dataclass(frozen=True)
class Asked:
    """What a source reads. `look_ms`: how often to look for new partitions; None: only once."""

    topics: Sequence[str]
    start: Start
    end: End | None
    look_ms: int | None


class KafkaDiscovery(Discovery):
    """Partitions that appear after the first look are read from their beginning."""

    def __init__(self, asked: Asked, context: SourceContext, known: Sequence[str], fetcher: Fetcher) -> None:
        self._asked = asked
        self._context = context
        self._fetcher = fetcher
        splits = [KafkaSplit.of(name) for name in known]
        self._known = {(split.topic, split.partition) for split in splits}
        self._found = [split for split in splits if self._is_mine(split.topic, split.partition)]
        self._first = not context.restored
        self._ready = context.restored
        self._looking = False
        self._next_ms: float | None = context.clock.now_ms()
        if asked.look_ms is None and context.restored:
            self._next_ms = None
        self._error: BaseException | None = None

    def poll(self) -> Sequence[str]:
        if self._error is not None:
            raise self._error
        now = self._context.clock.now_ms()
        if not self._looking and self._next_ms is not None and now >= self._next_ms:
            self._looking = True
            first, known = self._first, frozenset(self._known)
            self._fetcher.off_thread(lambda: self._look(first, known), self._looked)
        if not self._first:
            self._ready = True
        found, self._found = self._found, []
        return [split.id for split in found]

    def _looked(self, found: list[KafkaSplit] | None, error: BaseException | None) -> None:
        self._looking = False
        now = self._context.clock.now_ms()
        if isinstance(error, KafkaAway):
            self._next_ms = now + RETRY_MS
            return
        self._error = error
        if found is None:
            return
        if found and not self._first:
            logger.info("source %r found %s", self._context.uid, ", ".join(map(str, found)))
        self._first = False
        self._known |= {(split.topic, split.partition) for split in found}
        self._found += found
        self._next_ms = None if self._asked.look_ms is None else now + self._asked.look_ms

    @property
    def ready(self) -> bool:
        return self._ready and not self._found

    @property
    def finished(self) -> bool:
        return self._asked.look_ms is None and self.ready

    @property
    def wakeup_ms(self) -> float | None:
        return None if self._looking or self._found else self._next_ms

    def completed(self, positions: Mapping[str, Any]) -> None:
        splits = {KafkaSplit.of(name): offset for name, offset in positions.items()}
        if splits:
            self._fetcher.commit({(split.topic, split.partition): offset for split, offset in splits.items()})

    def close(self) -> None:
        self._fetcher.close()

    def _is_mine(self, topic: str, partition: int) -> bool:
        return owner(topic, partition, self._context.parallelism) == self._context.subtask

    # The methods below run in the offload queue.

    def _look(self, first: bool, known: frozenset[tuple[str, int]]) -> list[KafkaSplit]:
        """Returns the partitions that are this subtask's and new, with the offsets between which to read them."""
        consumer, told = self._fetcher.open_consumer(), self._fetcher.told
        new = [
            (topic, partition)
            for topic in self._asked.topics
            for partition in sorted(described(consumer, topic, told, first).topics[topic].partitions)
            if (topic, partition) not in known and self._is_mine(topic, partition)
        ]
        found = []
        for topic, partition in new:
            start = self._start(topic, partition) if first else self._range(topic, partition)[0]
            found.append(KafkaSplit(topic, partition, start, self._end(topic, partition)))
        return found

    def _range(self, topic: str, partition: int) -> tuple[int, int]:
        """Returns the first offset of a partition, and the one that its next record gets."""
        consumer = self._fetcher.open_consumer()
        tp = library().TopicPartition(topic, partition)
        low, high = asked(
            self._fetcher.told,
            f"{topic}[{partition}]",
            lambda: consumer.get_watermark_offsets(tp, timeout=ANSWER_S),
        )
        return int(low), int(high)

    def _start(self, topic: str, partition: int) -> int:
        match self._asked.start:
            case "earliest":
                return self._range(topic, partition)[0]
            case "latest":
                return self._range(topic, partition)[1]
            case "group":
                return self._of_group(topic, partition)
            case datetime() as when:
                return self._at(topic, partition, when)
            case offsets:
                assert isinstance(offsets, Mapping)
                start = given(offsets, topic, partition)
                return self._range(topic, partition)[0] if start is None else start

    def _end(self, topic: str, partition: int) -> int | None:
        match self._asked.end:
            case None:
                return None
            case "latest":
                return self._range(topic, partition)[1]
            case datetime() as when:
                return self._at(topic, partition, when)
            case offsets:
                assert isinstance(offsets, Mapping)
                end = given(offsets, topic, partition)
                return self._range(topic, partition)[1] if end is None else end

    def _of_group(self, topic: str, partition: int) -> int:
        """Returns how far the group has come in a partition; its beginning if the group has read nothing there."""
        consumer = self._fetcher.open_consumer()
        place = library().TopicPartition(topic, partition)
        (committed,) = asked(
            self._fetcher.told, f"{topic}[{partition}]", lambda: consumer.committed([place], timeout=ANSWER_S)
        )
        return int(committed.offset) if committed.offset >= 0 else self._range(topic, partition)[0]

    def _at(self, topic: str, partition: int, when: datetime) -> int:
        """Returns the offset of the first record of that time or later."""
        consumer = self._fetcher.open_consumer()
        place = library().TopicPartition(topic, partition, int(when.timestamp() * 1000))
        (found,) = asked(
            self._fetcher.told, f"{topic}[{partition}]", lambda: consumer.offsets_for_times([place], timeout=ANSWER_S)
        )
        return int(found.offset) if found.offset >= 0 else self._range(topic, partition)[1]
