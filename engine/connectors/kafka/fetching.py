"""Fetches the records of one subtask: one consumer for all of its partitions, with a buffer for each.

The consumer is used in the offload queue of the subtask's reads only, so by one thread at a time. Invariant: a position
is the offset after the last record that was handed out, and a partition whose buffer is full is not fetched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from engine.connectors.kafka.client import ANSWER_S, Cluster, KafkaAway, KafkaError, Told, asked, library, logger
from engine.connectors.kafka.rows import BadRecord, Chunk, RowMaker
from engine.connectors.kafka.splits import KafkaSplit
from engine.core.sources import MALFORMED, SourceContext, SplitReader

if TYPE_CHECKING:
    import confluent_kafka

OutOfRange = Literal["fail", "earliest", "latest"]

WAIT_S = 0.1
"""How long a fetch waits for a first record."""

FETCH_ROWS = 16_384
"""A fetch takes at most so many records."""

BUFFERED_ROWS = 4 * FETCH_ROWS
BUFFERED_BYTES = 32 << 20
"""A partition with so many records or bytes that are not handed out is not fetched."""

RETRY_MS = 1000.0
"""The pause before a registry that did not answer is asked again."""

Place = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True)
class _Wanted:
    """What the task thread asks of a fetch. `new`: partitions to begin with, at these offsets."""

    new: Mapping[Place, int]
    pause: Sequence[Place]
    resume: Sequence[Place]
    ends: Mapping[Place, int | None]


class Fetcher:
    """The consumer of one subtask. Only `open_consumer` and what is passed to `off_thread` use the consumer itself."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        out_of_range: OutOfRange,
        rows: RowMaker,
        context: SourceContext,
    ) -> None:
        self.told = Told(f"source {context.uid!r}", cluster.servers)
        self._cluster = cluster
        self._group = group
        self._out_of_range = out_of_range
        self._rows = rows
        self._context = context
        self._consumer: confluent_kafka.Consumer | None = None
        # Of the task thread:
        self._readers: dict[Place, KafkaReader] = {}
        self._new: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self._fetching = False
        self._closed = False
        self._error: BaseException | None = None
        self._retry_ms: float | None = None
        # Of the offload queue:
        self._next: dict[Place, int] = {}
        self._undecoded: list[Any] = []

    def off_thread(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self._context.offload.submit(self._context.queue, work, done)

    def open_consumer(self) -> confluent_kafka.Consumer:
        if self._consumer is None:
            self._consumer = self._cluster.consumer(self._group, self.told)
        return self._consumer

    def add(self, reader: KafkaReader) -> None:
        place = reader.place
        self._readers[place] = reader
        if not reader.finished:
            self._new[place] = reader.position

    def remove(self, reader: KafkaReader) -> None:
        self._readers.pop(reader.place, None)

    def go_on(self) -> None:
        """Begins the next fetch unless one is under way, or all buffers are full. Raises the error of the last one."""
        if self._error is not None:
            raise self._error
        if self._fetching or self._closed or self.wakeup_ms is not None:
            return
        self._retry_ms = None
        full = {place for place, reader in self._readers.items() if reader.full or reader.finished}
        if len(full) == len(self._readers):
            return
        pause, resume = full - self._paused - self._new.keys(), self._paused - full
        ends = {place: reader.split.end for place, reader in self._readers.items()}
        wanted = _Wanted(self._new, sorted(pause), sorted(resume & self._readers.keys()), ends)
        self._new, self._paused = {}, (self._paused | pause) - resume
        self._fetching = True
        self.off_thread(lambda: self._fetch(wanted), self._fetched)

    @property
    def wakeup_ms(self) -> float | None:
        due = self._retry_ms
        return due if due is not None and self._context.clock.now_ms() < due else None

    def _fetched(self, chunks: list[tuple[Place, Chunk]] | None, error: BaseException | None) -> None:
        self._fetching = False
        if isinstance(error, KafkaAway):
            logger.warning("source %r waits: %s", self._context.uid, error)
            self._retry_ms = self._context.clock.now_ms() + RETRY_MS
            return
        self._error = error
        for place, chunk in chunks or ():
            if place in self._readers:
                self._readers[place].take(chunk)
        if error is None:
            self.go_on()

    def commit(self, offsets: Mapping[Place, int]) -> None:
        """Tells the group how far the job has come. Nothing depends on it, so a failure is only logged."""

        def work() -> None:
            kafka = library()
            places = [kafka.TopicPartition(*place, offset) for place, offset in offsets.items()]
            try:
                self.open_consumer().commit(offsets=places, asynchronous=True)
            except kafka.KafkaException as error:
                logger.warning("source %r can't tell group %r: %s", self._context.uid, self._group, error)

        if not self._closed:
            self.off_thread(work, lambda result, error: None)

    def close(self) -> None:
        def work() -> None:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

        if not self._closed:
            self._closed = True
            self.off_thread(work, lambda result, error: None)

    # The methods below run in the offload queue.

    def _fetch(self, wanted: _Wanted) -> list[tuple[Place, Chunk]]:
        kafka = library()
        consumer = self.open_consumer()
        if wanted.new:
            consumer.incremental_assign([kafka.TopicPartition(*place, offset) for place, offset in wanted.new.items()])
            self._next.update(wanted.new)
        for change, places in ((consumer.pause, wanted.pause), (consumer.resume, wanted.resume)):
            if places:
                change([kafka.TopicPartition(*place) for place in places])
        if not self._undecoded:
            self._undecoded = self._consume(consumer)
        found: list[tuple[Place, Chunk]] = []
        for place, messages in _by_place(self._undecoded):
            for run in self._good(consumer, place, messages):
                chunk = self._chunk(place, run, wanted.ends.get(place))
                if chunk is not None:
                    found.append((place, chunk))
        self._undecoded = []
        for (topic, partition), chunk in found:
            self._next[topic, partition] = chunk.after
        return found

    def _consume(self, consumer: confluent_kafka.Consumer) -> list[Any]:
        messages = list(consumer.consume(1, WAIT_S))
        self.told.check()
        if messages:
            self.told.answers()
            return messages + list(consumer.consume(FETCH_ROWS - 1, 0.0))
        if self.told.away:  # an idle topic gives no sign of life by itself
            with suppress(KafkaAway):
                asked(self.told, "brokers", lambda: consumer.list_topics("__weir", timeout=WAIT_S))
        return messages

    def _good(self, consumer: confluent_kafka.Consumer, place: Place, messages: list[Any]) -> list[list[Any]]:
        """Returns the records in runs without errors; the end of a partition is a run of that one event."""
        kafka = library()
        runs: list[list[Any]] = [[]]
        for message in messages:
            error = message.error()
            if error is None:
                runs[-1].append(message)
            elif error.code() == kafka.KafkaError._PARTITION_EOF:
                runs += [[message], []]
            elif error.code() in (kafka.KafkaError._AUTO_OFFSET_RESET, kafka.KafkaError.OFFSET_OUT_OF_RANGE):
                self._go_to_range(consumer, place)
            else:
                raise KafkaError(f"{place[0]}[{place[1]}], offset {self._next[place]}: {error.str()}")
        return [run for run in runs if run]

    def _chunk(self, place: Place, messages: list[Any], end: int | None) -> Chunk | None:
        if messages[0].error() is not None:
            return Chunk.empty(self._rows.schema, max(messages[0].offset(), self._next[place]))
        offsets = np.array([message.offset() for message in messages], np.int64)
        first = int(np.searchsorted(offsets, self._next[place]))
        last = len(messages) if end is None else int(np.searchsorted(offsets, end))
        if first >= last:
            return Chunk.empty(self._rows.schema, max(self._next[place], end or 0)) if end is not None else None
        return self._rows.chunk(*place, messages[first:last], offsets[first:last])

    def _go_to_range(self, consumer: confluent_kafka.Consumer, place: Place) -> None:
        kafka = library()
        tp, at = kafka.TopicPartition(*place), self._next[place]
        name = f"{place[0]}[{place[1]}]"
        low, high = asked(self.told, name, lambda: consumer.get_watermark_offsets(tp, timeout=ANSWER_S))
        gone = f"{name} has no offset {at} any more: it has those from {low} to {high}"
        if self._out_of_range == "fail":
            raise KafkaError(
                f"source {self._context.uid!r}: {gone}. Records between are lost, or the topic was made anew. Give the "
                "source out_of_range='earliest' or out_of_range='latest' to read on there"
            )
        to = low if self._out_of_range == "earliest" else high
        logger.warning("source %r: %s; it reads on from %d", self._context.uid, gone, to)
        consumer.incremental_unassign([tp])
        consumer.incremental_assign([kafka.TopicPartition(*place, to)])
        self._next[place] = to


def _by_place(messages: list[Any]) -> list[tuple[Place, list[Any]]]:
    """Groups messages by partition. A consumer gives long runs of one partition."""
    found: dict[Place, list[Any]] = {}
    for message in messages:
        place = (message.topic(), message.partition())
        found.setdefault(place, []).append(message)
    return list(found.items())


@dataclass
class KafkaReader(SplitReader):
    """Hands out the records of one partition."""

    split: KafkaSplit
    at: int
    fetcher: Fetcher
    _chunks: deque[Chunk] = field(default_factory=deque)
    _rows: int = 0  # handed out of the first chunk
    _passed: int = 0  # bad records of the first chunk that were met
    _bad: list[BadRecord] = field(default_factory=list)

    @property
    def place(self) -> Place:
        return self.split.topic, self.split.partition

    def take(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)

    @property
    def full(self) -> bool:
        waiting: int = sum(chunk.rows.num_rows for chunk in self._chunks) - self._rows
        return waiting >= BUFFERED_ROWS or sum(chunk.rows.nbytes for chunk in self._chunks) >= BUFFERED_BYTES

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        rows = None
        while self._chunks and (rows is None or not rows.num_rows):
            rows = self._hand_out(self._chunks[0], max_rows)
        self.fetcher.go_on()
        return rows

    def _hand_out(self, chunk: Chunk, max_rows: int) -> pa.RecordBatch:
        rows = chunk.rows.slice(self._rows, max_rows)
        self._rows += rows.num_rows
        exhausted = self._rows == chunk.rows.num_rows
        self.at = chunk.after if exhausted else int(chunk.offsets[self._rows - 1]) + 1
        passed = sum(bad.offset < self.at for bad in chunk.bad)
        self._bad += chunk.bad[self._passed : passed]
        self._passed = passed
        if exhausted:
            self._chunks.popleft()
            self._rows = self._passed = 0
        return rows

    def malformed(self) -> pa.RecordBatch | None:
        if not self._bad:
            return None
        bad, self._bad = self._bad, []
        places = [[str(self.split)] * len(bad), [one.offset for one in bad]]
        columns = [*places, [one.text for one in bad], [one.reason for one in bad]]
        return pa.record_batch(columns, schema=MALFORMED.schema)

    @property
    def position(self) -> int:
        return self.at

    @property
    def finished(self) -> bool:
        return self.split.end is not None and self.at >= self.split.end and not self._chunks

    @property
    def wakeup_ms(self) -> float | None:
        return self.fetcher.wakeup_ms

    def close(self) -> None:
        self.fetcher.remove(self)
