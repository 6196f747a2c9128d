"""Functions of joins (A8), in the row lane: they get two records, or all records of two sides, that belong together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.core.functions import Emitted, Function, Row


class JoinContext:
    """Tells the event times of the two records that an interval join has found."""

    def __init__(self) -> None:
        self.left_ms = 0
        self.right_ms = 0

    def get_left_timestamp(self) -> int:
        """Returns the event time of the left record."""
        return self.left_ms

    def get_right_timestamp(self) -> int:
        """Returns the event time of the right record."""
        return self.right_ms

    def get_timestamp(self) -> int:
        """Returns the event time of the results: the larger of the two."""
        return max(self.left_ms, self.right_ms)


class ProcessJoinFunction(Function):
    """Processes each pair of an interval join; it may emit to side outputs."""

    def process_element(self, left: Row, right: Row, context: JoinContext) -> Iterable[Emitted]:
        """Is called with each pair. Returns a list of records, or yields them."""
        raise NotImplementedError


class JoinFunction(Function):
    """Returns one record for each pair of a window join."""

    def join(self, first: Row, second: Row) -> Row:
        """Returns the record for a pair."""
        raise NotImplementedError


class FlatJoinFunction(Function):
    """Returns any number of records for each pair of a window join."""

    def join(self, first: Row, second: Row) -> Iterable[Row]:
        """Returns, or yields, the records for a pair."""
        raise NotImplementedError


class CoGroupFunction(Function):
    """Returns any number of records for all records of one key in one window: those of both streams, or of one."""

    def co_group(self, first: Sequence[Row], second: Sequence[Row]) -> Iterable[Row]:
        """Returns, or yields, the records for a key and a window. One of the two lists may be empty."""
        raise NotImplementedError
