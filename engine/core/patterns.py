"""What a pattern says (A11), as values: its stages in order, how they follow each other, and what a match discards.

`engine/api/patterns.py` lets the author write one; `engine/runtime/patterns/` compiles and runs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

Row = dict[str, Any]


class Contiguity(Enum):
    """How the next record of a match must follow the one before. The values are the names of Flink's methods."""

    STRICT = "next"
    RELAXED = "followed_by"
    ANY = "followed_by_any"


class PatternContext(ABC):
    """Tells a condition or a function of a pattern the time."""

    @abstractmethod
    def timestamp(self) -> int:
        """Returns the event time in Unix ms: of the record in a condition, of the match or of its time-out else."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Returns the time of the clock. A replay finds another one."""


class ConditionContext(PatternContext):
    """Tells a condition with two arguments what the partial match holds that the record would go into."""

    @abstractmethod
    def events_for_pattern(self, name: str) -> list[Row]:
        """Returns the records that the partial match has for the pattern of this name. They must not be changed."""


@dataclass(frozen=True)
class Condition:
    """`iterative`: it looks at the partial match, so one record may meet it in one partial match and not in another."""

    test: Callable[[Row, Any], Any]
    iterative: bool


@dataclass(frozen=True)
class Stage:
    """One pattern of a sequence, or a group of them, or one that must not occur (`negated`).

    `contiguity` says how its first record follows the stage before, `inner` how its further records follow each other.
    `most` is None if there is no limit. `counted`: the author said how often. `line`: the author's line.
    """

    name: str
    contiguity: Contiguity
    line: str
    negated: bool = False
    condition: Condition | None = None
    least: int = 1
    most: int | None = 1
    counted: bool = False
    optional: bool = False
    greedy: bool = False
    inner: Contiguity = Contiguity.RELAXED
    until: Condition | None = None
    group: tuple[Stage, ...] = ()

    @property
    def repeats(self) -> bool:
        return self.most != 1

    @property
    def skippable(self) -> bool:
        """True if a match may hold no record of it: it is optional, or a group of which all is."""
        return self.optional or (bool(self.group) and all(stage.skippable for stage in self.group))

    def described(self) -> str:
        """Returns the stage as text without its conditions: two stages with the same text keep the same state."""
        of = f"({_sequence(self.group)})" if self.group else repr(self.name)
        if self.negated:
            return f"not_{self.contiguity.value}({of})"
        text = f"{self.contiguity.value}({of})"
        if self.repeats:
            text += f".times({self.least}, {self.most or 'more'})"
            text += {Contiguity.STRICT: ".consecutive", Contiguity.ANY: ".allow_combinations"}.get(self.inner, "")
        flags = (("optional", self.optional), ("greedy", self.greedy), ("until", self.until is not None))
        return text + "".join(f".{name}" for name, on in flags if on)


class Skip(Enum):
    NO_SKIP = "no_skip"
    TO_NEXT = "skip_to_next"
    PAST_LAST_EVENT = "skip_past_last_event"
    TO_FIRST = "skip_to_first"
    TO_LAST = "skip_to_last"


@dataclass(frozen=True)
class AfterMatchSkipStrategy:
    """Says which other matches a match discards. Make one with the static methods, which are named as in Flink."""

    skip: Skip
    name: str = ""
    throws: bool = False

    @staticmethod
    def no_skip() -> AfterMatchSkipStrategy:
        """Emits every match. This is the default."""
        return AfterMatchSkipStrategy(Skip.NO_SKIP)

    @staticmethod
    def skip_to_next() -> AfterMatchSkipStrategy:
        """Discards the other matches that begin with the same record."""
        return AfterMatchSkipStrategy(Skip.TO_NEXT)

    @staticmethod
    def skip_past_last_event() -> AfterMatchSkipStrategy:
        """Discards the matches that begin with a record of this match or between its records."""
        return AfterMatchSkipStrategy(Skip.PAST_LAST_EVENT)

    @staticmethod
    def skip_to_first(name: str) -> AfterMatchSkipStrategy:
        """Discards the matches that begin before the first record of the pattern of this name."""
        return AfterMatchSkipStrategy(Skip.TO_FIRST, name)

    @staticmethod
    def skip_to_last(name: str) -> AfterMatchSkipStrategy:
        """Discards the matches that begin before the last record of the pattern of this name."""
        return AfterMatchSkipStrategy(Skip.TO_LAST, name)

    def throw_exception_on_miss(self) -> AfterMatchSkipStrategy:
        """Fails the job at a match that has no record to skip to, or that would skip to its own first record."""
        return replace(self, throws=True)

    def described(self) -> str:
        """Returns the strategy as text, for the description of a job."""
        return f"{self.skip.value}({repr(self.name) if self.name else ''})"


@dataclass(frozen=True)
class PatternSequence:
    """A whole pattern. `within_ms`: a match is shorter than this, from its first record to its last."""

    stages: tuple[Stage, ...]
    skip: AfterMatchSkipStrategy
    within_ms: int | None

    @property
    def names(self) -> list[str]:
        """The names under which a match holds records, in the order of the pattern."""
        return [stage.name for stage in singles(self.stages) if not stage.negated]

    def described(self) -> str:
        """Returns the pattern as text, without its conditions."""
        within = f" within {self.within_ms} ms" if self.within_ms is not None else ""
        return f"{_sequence(self.stages)}{within}, {self.skip.described()}"


def singles(stages: tuple[Stage, ...]) -> Iterator[Stage]:
    """Returns the stages in order, those of groups instead of the group."""
    for stage in stages:
        if stage.group:
            yield from singles(stage.group)
        else:
            yield stage


def _sequence(stages: tuple[Stage, ...]) -> str:
    text = " ".join(stage.described() for stage in stages)
    return text.replace(stages[0].contiguity.value, "begin", 1)
