"""`PatternProcessFunction`: the base class of functions that are called with the matches of a pattern (A11)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from engine.core.functions import Emitted, Function, Row
from engine.core.patterns import PatternContext

Match = dict[str, list[Row]]
"""The records of a match by the name of their pattern, in order. An optional pattern without records has []."""


class MatchContext(PatternContext):
    """Tells the time and the key of a match."""

    @abstractmethod
    def get_current_key(self) -> Any:
        """Returns the value of the key column, or a tuple of the values if there are several."""


class PatternProcessFunction(Function):
    """Processes the matches of a pattern: any number of records for each, also to side outputs."""

    def process_match(self, match: Match, context: MatchContext) -> Iterable[Emitted]:
        """Is called with each match. Returns a list of records, or yields them."""
        raise NotImplementedError

    def process_timed_out_match(self, match: Match, context: MatchContext) -> Iterable[Emitted]:
        """Is called with a partial match that `within` ended, if a subclass has it. Emit with `yield TAG, record`."""
        raise NotImplementedError

    @property
    def has_time_out(self) -> bool:
        """True if the author wrote `process_timed_out_match`."""
        return type(self).process_timed_out_match is not PatternProcessFunction.process_timed_out_match
