"""`WatermarkStrategy`: says which column holds the event time, and how watermarks are made of it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from engine.api import foreign
from engine.api.functions import no_method, shown
from engine.core.authors import defined_at, short_line
from engine.core.durations import Duration, to_ms, to_signed_ms
from engine.core.errors import JobError
from engine.core.event_time import EventTimeStrategy
from engine.core.watermark_generators import MakesGenerator, WatermarkGenerator
from engine.graph.stream_graph import StreamGraph
from engine.protocol.watermark_alignment import WatermarkAlignment


@dataclass(frozen=True)
class WatermarkStrategy:
    """Says which column holds the event time, and how long windows wait for records that arrive out of order.

    The watermark is the highest event time seen so far, minus the bound, minus 1 ms. A window fires when the watermark
    reaches its last millisecond; records that arrive for it after that are late: they are dropped and counted.

        WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamps("ts")
    """

    bound_ms: int
    column: str | None = None
    alignment: WatermarkAlignment | None = None
    idle_ms: int | None = None
    generator: MakesGenerator | None = None
    emit_interval_ms: int = 200

    @classmethod
    def for_bounded_out_of_orderness(cls, bound: Duration) -> WatermarkStrategy:
        """Returns a strategy for event times that are at most `bound` below the highest one seen before them."""
        return cls(to_ms(bound, "for_bounded_out_of_orderness"))

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """Returns a strategy for records whose event times never go down within a split."""
        return cls(0)

    @classmethod
    def for_generator(cls, generator: MakesGenerator, emit_interval: Duration = "200 ms") -> WatermarkStrategy:
        """Returns a strategy whose watermarks a `WatermarkGenerator` of your own makes.

        The function is called once for each split, with a `WatermarkGeneratorContext`, and returns its generator.
        `on_periodic_emit` is called after each batch, and every `emit_interval` while a split gives none.

            WatermarkStrategy.for_generator(lambda context: ByMarkers()).with_timestamps("ts")
        """
        _check_maker(generator)
        interval_ms = to_signed_ms(emit_interval, "emit_interval")
        if interval_ms <= 0:
            raise JobError(
                f"for_generator has emit_interval {interval_ms} ms; it must be above 0: give how often a generator "
                "without records is asked for a watermark, such as '200 ms'"
            )
        return cls(0, generator=generator, emit_interval_ms=interval_ms)

    def with_timestamps(self, column: str) -> WatermarkStrategy:
        """Returns the strategy with the column that holds the event time: a timestamp, or integers in milliseconds.

        Integers count milliseconds since 1970. For other units declare the column as a timestamp, or compute it.
        """
        if not isinstance(column, str):
            raise JobError(
                f"with_timestamps takes the name of a column, not {shown(column)}: compute the event time as a column "
                "first, with select(...) or map(...)"
            )
        return replace(self, column=column)

    def with_idleness(self, idle_timeout: Duration) -> WatermarkStrategy:
        """Returns the strategy with a time after which a quiet split no longer holds event time back.

        A split of the source that gives no records for so long, by the clock, is idle: watermarks and aligned sources
        go on without it. Its next record ends that; such a record may be late. When all splits are idle, event time is
        that of the furthest.

            WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamps("ts").with_idleness("1 min")
        """
        return replace(self, idle_ms=to_signed_ms(idle_timeout))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_method(self, name, foreign.STRATEGY)

    def with_watermark_alignment(
        self, group: str, max_drift: Duration, update_interval: Duration = "1 s"
    ) -> WatermarkStrategy:
        """Returns the strategy with a bound on how far the splits of a source drift apart in event time.

        A split whose watermark is more than `max_drift` ahead of the slowest of its group is not read until the others
        have caught up. All sources of the job that name the same `group` wait for each other, so that a join or a
        window does not have to keep what the faster one is ahead. Splits and subtasks with nothing to read do not hold
        the others back. The group's members hear of each other every `update_interval`.

            WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts").with_watermark_alignment("all", "1 min")
        """
        if not isinstance(group, str) or not group:
            raise JobError(f"with_watermark_alignment takes the name of a group, a text, not {group!r}")
        drift_ms, interval_ms = to_signed_ms(max_drift), to_signed_ms(update_interval)
        return replace(self, alignment=WatermarkAlignment(group, drift_ms, interval_ms))

    def compiled(self, operator: str) -> EventTimeStrategy:
        """Returns what the runtime needs of it; raises a `JobError` that names the operator if it is not complete."""
        if self.column is None:
            told = "aligns watermarks, but " if self.alignment is not None else ""
            raise JobError(
                f"{operator}: the watermark strategy {told}names no event time column: add with_timestamps(COLUMN)"
            )
        if self.alignment is not None:
            _check(self.alignment, operator)
        if self.idle_ms is not None and self.idle_ms <= 0:
            raise JobError(
                f"{operator}: with_idleness has {self.idle_ms} ms; it must be above 0: give the time after which a "
                "split without records no longer holds the others back, such as '1 min'"
            )
        return EventTimeStrategy(
            self.column, self.bound_ms, self.alignment, self.idle_ms, self.generator, self.emit_interval_ms
        )


def check_idleness(strategy: EventTimeStrategy, operator: str, at_source: bool) -> None:
    """Refuses idleness where there are no splits that could fall idle."""
    if strategy.idle_ms is not None and not at_source:
        raise JobError(
            f"with_idleness({strategy.idle_ms}) behind {operator}: only the splits of a source fall idle, so call "
            "assign_timestamps_and_watermarks on the stream of the source"
        )


def check_alignment(alignment: WatermarkAlignment | None, operator: str, at_source: bool, graph: StreamGraph) -> None:
    """Refuses an alignment that could pause nothing, or that differs from another source's in the same group."""
    if alignment is None:
        return
    if not at_source:
        raise JobError(
            f"with_watermark_alignment({alignment.group!r}, …) behind {operator}: only a source can wait, so call "
            "assign_timestamps_and_watermarks on the stream of the source"
        )
    for node in graph.nodes:
        other = node.source.strategy.alignment if node.source and node.source.strategy else None
        if other is not None and other.group == alignment.group and other != alignment:
            raise JobError(
                f"{operator} and source {node.named} are in the alignment group {alignment.group!r} with different "
                f"bounds ({alignment}; {other}): give both the same max_drift and update_interval, or another group"
            )


def _check_maker(given: object) -> None:
    """Refuses what is not a function that can be called with a context and makes a generator."""
    example = "for_generator(lambda context: MyGenerator())"
    if isinstance(given, WatermarkGenerator):
        name = type(given).__name__
        raise JobError(
            f"for_generator takes a function that makes a generator, not an object of {name}: each split needs its "
            f"own; write for_generator(lambda context: {name}())"
        )
    if not callable(given):
        raise JobError(f"for_generator takes a function that makes a generator, not {shown(given)}: write {example}")
    try:
        inspect.signature(given).bind(None)
    except ValueError:
        return  # a function written in C may not tell its parameters: its first call will
    except TypeError:
        line = defined_at(given.__init__ if isinstance(given, type) else given)  # type: ignore[misc]
        at = f" ({short_line(line)})" if line else ""
        raise JobError(
            f"for_generator calls its function with a context, and {shown(given)}{at} does not take one argument: "
            f"write {example}"
        ) from None


def _check(alignment: WatermarkAlignment, operator: str) -> None:
    for name, value, fix in (
        ("max_drift", alignment.max_drift_ms, "how far splits may be apart in event time, such as '1 min'"),
        ("update_interval", alignment.update_interval_ms, "how often they hear of each other, such as '1 s'"),
    ):
        if value <= 0:
            raise JobError(
                f"{operator}: with_watermark_alignment({alignment.group!r}, …) has {name} {value} ms; it must be above "
                f"0: give {fix}"
            )
