"""`KafkaSource` reads topics: a split is a partition, and a position is the offset of the next record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from engine.connectors.extras import needs_extra
from engine.connectors.kafka.client import Cluster
from engine.connectors.kafka.discovery import Asked, KafkaDiscovery
from engine.connectors.kafka.fetching import Fetcher, KafkaReader, OutOfRange
from engine.connectors.kafka.json import Json
from engine.connectors.kafka.rows import RowMaker, check_columns, split_schema
from engine.connectors.kafka.splits import End, KafkaSplit, Start, check_offsets
from engine.connectors.kafka.values import ValueFormat
from engine.core.durations import Duration, to_ms
from engine.core.failed_records import POLICIES, Policy
from engine.core.sources import MALFORMED, Discovery, Source, SourceContext, SplitReader


class KafkaSource(Source):
    """Reads the records of topics.

    `servers`: brokers to ask first, as in "kafka1:9092,kafka2:9092". `value`: how values are written: `Json()`,
    `Bytes()`, `Avro(...)` or `Protobuf(...)`. Columns named kafka_key, kafka_timestamp, kafka_headers, kafka_topic,
    kafka_partition and kafka_offset hold what Kafka knows about a record, where the schema declares them.

    `start`: where a new job begins: "earliest", "latest", "group" (where the group has come to, else the beginning), a
    `datetime` with a zone, or offsets by partition. A job that goes on begins at the positions of its snapshot.
    `until`: where it ends: "latest" (as it is when the job starts), a `datetime`, or offsets; None: it never ends.
    `group`: the group that is told how far the job has come, for information; None: weir-JOB-UID.
    `discover`: how often to look for new partitions, which are read from their beginning.
    `malformed`: what to do with a record whose value does not fit: "fail", "skip" or "dead_letter".
    `out_of_range`: what to do if the next offset does not exist any more: "fail", "earliest" or "latest".
    `settings`: more settings of librdkafka, such as those for passwords.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        *,
        servers: str,
        value: ValueFormat | None = None,
        start: Start = "earliest",
        until: End | None = None,
        group: str | None = None,
        discover: Duration = "1 min",
        malformed: Policy = "fail",
        out_of_range: OutOfRange = "fail",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        needs_extra("confluent_kafka", "kafka", "KafkaSource")
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        if not self._topics or not all(isinstance(topic, str) and topic for topic in self._topics):
            raise ValueError(f"KafkaSource({topics!r}): write the name of a topic, or a list of names")
        self._value = Json() if value is None else value
        if not isinstance(self._value, ValueFormat):
            raise ValueError(f"value={value!r}: write Json(), Bytes(), Avro(...) or Protobuf(...)")
        self._check_bound("start", start, ("earliest", "latest", "group"))
        if until is not None:
            self._check_bound("until", until, ("latest",))
        if start == "group" and group is None:
            raise ValueError("start='group' needs the name of a group: write group='...', too")
        if malformed not in POLICIES:
            raise ValueError(f"malformed={malformed!r}: write 'fail', 'skip' or 'dead_letter'")
        if out_of_range not in ("fail", "earliest", "latest"):
            raise ValueError(f"out_of_range={out_of_range!r}: write 'fail', 'earliest' or 'latest'")
        look_ms = to_ms(discover, "discover")
        if look_ms == 0:
            raise ValueError(f"discover={discover!r}: looking without a pause keeps a core busy; write '1 min' or so")
        self._asked = Asked(self._topics, start, until, None if until is not None else look_ms)
        self._cluster = Cluster(servers, dict(settings or {}))
        self._group = group
        self._malformed = malformed
        self._out_of_range = out_of_range
        self.side_outputs = (MALFORMED,) if malformed == "dead_letter" else ()
        self._fetchers: dict[tuple[str, int, str], Fetcher] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fetchers": {}}

    def _check_bound(self, name: str, bound: object, words: Sequence[str]) -> None:
        if isinstance(bound, datetime):
            if bound.tzinfo is None:
                raise ValueError(f"{name}={bound!r} has no zone: write datetime(..., tzinfo=UTC)")
        elif isinstance(bound, str):
            if bound not in words:
                raise ValueError(
                    f"{name}={bound!r}: write {', '.join(map(repr, words))}, a datetime, or offsets by partition"
                )
        else:
            check_offsets(bound, self._topics, name)

    @property
    def positions(self) -> str:
        return f"the topics {', '.join(sorted(self._topics))}"

    def check(self, schema: pa.Schema) -> None:
        check_columns(schema)
        self._value.check(split_schema(schema)[0])

    def discovery(self, context: SourceContext, known: Sequence[str]) -> Discovery:
        fetcher = Fetcher(
            self._cluster,
            self._group or f"weir-{context.paths.job}-{context.uid}",
            self._out_of_range,
            RowMaker(context.schema, self._value, self._malformed == "fail", context.uid),
            context,
        )
        self._fetchers[_place(context)] = fetcher
        return KafkaDiscovery(self._asked, context, known, fetcher)

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        parsed = KafkaSplit.of(split)
        fetcher = self._fetchers[_place(context)]
        reader = KafkaReader(parsed, parsed.start if position is None else int(position), fetcher)
        fetcher.add(reader)
        return reader


def _place(context: SourceContext) -> tuple[str, int, str]:
    return context.uid, context.subtask, str(context.attempt)
