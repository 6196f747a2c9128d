"""Functions of two connected streams (A7). Each has a method per stream; the order between the streams is any."""

from __future__ import annotations

from collections.abc import Iterable

from engine.core.functions import Emitted, Function, ProcessContext, Row, TimerFunction


class CoMapFunction(Function):
    """Returns one record for each record of the first and of the second stream."""

    def map1(self, value: Row) -> Row:
        """Returns the record for a record of the first stream."""
        raise NotImplementedError

    def map2(self, value: Row) -> Row:
        """Returns the record for a record of the second stream."""
        raise NotImplementedError


class CoFlatMapFunction(Function):
    """Returns any number of records for each record of the first and of the second stream."""

    def flat_map1(self, value: Row) -> Iterable[Row]:
        """Returns, or yields, the records for a record of the first stream."""
        raise NotImplementedError

    def flat_map2(self, value: Row) -> Iterable[Row]:
        """Returns, or yields, the records for a record of the second stream."""
        raise NotImplementedError


class CoProcessFunction(Function):
    """Processes two streams without keys; it may emit to side outputs."""

    def process_element1(self, value: Row, context: ProcessContext) -> Iterable[Emitted]:
        """Is called with each record of the first stream. Returns a list of records, or yields them."""
        raise NotImplementedError

    def process_element2(self, value: Row, context: ProcessContext) -> Iterable[Emitted]:
        """Is called with each record of the second stream. Returns a list of records, or yields them."""
        raise NotImplementedError


class KeyedCoProcessFunction(TimerFunction):
    """Processes two keyed streams; records of both with the same key share state and timers."""

    def process_element1(self, value: Row, context: ProcessContext) -> Iterable[Emitted]:
        """Is called with each record of the first stream. Returns a list of records, or yields them."""
        raise NotImplementedError

    def process_element2(self, value: Row, context: ProcessContext) -> Iterable[Emitted]:
        """Is called with each record of the second stream. Returns a list of records, or yields them."""
        raise NotImplementedError
