"""Decides which partitions a subtask reads, and from which offset to which. Pure: `discovery.py` asks the brokers.

Invariant: all subtasks in all attempts assign partitions by the same rule, so each partition has exactly one owner.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Offsets = Mapping[int, int] | Mapping[str, Mapping[int, int]]
"""Offsets by partition, or by topic and partition."""

Start = Literal["earliest", "latest", "group"] | datetime | Offsets
End = Literal["latest"] | datetime | Offsets

_NAME = re.compile(r"(?P<topic>.+)\[(?P<partition>\d+)\] from (?P<start>\d+)(?: until (?P<end>\d+))?")


@dataclass(frozen=True)
class KafkaSplit:
    """A partition, from the offset at which the job began to read it. `end`: the first offset not to read."""

    topic: str
    partition: int
    start: int
    end: int | None = None

    @property
    def id(self) -> str:
        until = "" if self.end is None else f" until {self.end}"
        return f"{self} from {self.start}{until}"

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"

    @staticmethod
    def of(split: str) -> KafkaSplit:
        found = _NAME.fullmatch(split)
        assert found is not None, f"{split!r} is no split of a Kafka source"
        end = None if found["end"] is None else int(found["end"])
        return KafkaSplit(found["topic"], int(found["partition"]), int(found["start"]), end)


def owner(topic: str, partition: int, parallelism: int) -> int:
    """Returns the subtask that reads a partition. The partitions of a topic are spread evenly."""
    return (zlib.crc32(topic.encode()) + partition) % parallelism


def given(offsets: Offsets, topic: str, partition: int) -> int | None:
    """Returns the offset that is given for a partition; None if none is."""
    by_place = {
        place: offset
        for key, value in offsets.items()
        for place, offset in (value.items() if isinstance(value, Mapping) else [(key, value)])
        if not isinstance(value, Mapping) or key == topic
    }
    return by_place.get(partition)


def check_offsets(offsets: object, topics: list[str], what: str) -> None:
    """Raises a ValueError unless offsets are given as `Offsets` says, for these topics."""
    example = f"{what}={{0: 17, 1: 4}} or {what}={{'{topics[0]}': {{0: 17}}}}"
    if not isinstance(offsets, Mapping) or not offsets:
        raise ValueError(f"{what}={offsets!r}: write offsets by partition, as in {example}")
    by_topic = all(isinstance(key, str) for key in offsets)
    if not by_topic and len(topics) > 1:
        raise ValueError(f"{what}={offsets!r} names no topic, and the source reads {topics}: write {example}")
    for name in offsets if by_topic else ():
        if name not in topics:
            raise ValueError(f"{what} names the topic {name!r}, and the source reads {topics}")
    for of in offsets.values() if by_topic else [offsets]:
        if not isinstance(of, Mapping) or any(
            isinstance(number, bool) or not isinstance(number, int) or number < 0
            for pair in of.items()
            for number in pair
        ):
            raise ValueError(f"{what}={offsets!r}: write numbers of partitions and offsets, as in {example}")
