"""`GeneratedWatermark`: the watermark that a generator of the job's author makes for one split (B1).

Invariants: it never goes back, whatever the generator emits, also not across restores. A record without event time does
not reach the generator. An error of the generator names the author's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import index
from typing import Any

import msgspec
import pyarrow as pa

from engine.core.authors import defined_at
from engine.core.errors import UserFunctionError
from engine.core.event_time import EARLIEST_MS, EVENT_TIME, LATEST_MS, EventTimeStrategy
from engine.core.ports import Clock
from engine.core.watermark_generators import WatermarkGenerator, WatermarkGeneratorContext, WatermarkOutput
from engine.protocol.signals import MIN_WATERMARK
from engine.runtime.operators.base import OperatorContext
from engine.runtime.operators.records import records_of, short


class GeneratedWatermark(WatermarkOutput):
    """`split` is None behind a source: there the generator serves all input of a subtask, and keeps no state.

    `reached_ms` and `state` are what a snapshot held of this split.
    """

    def __init__(
        self,
        strategy: EventTimeStrategy,
        context: OperatorContext,
        split: str | None,
        reached_ms: int = MIN_WATERMARK,
        state: Any = None,
    ) -> None:
        assert strategy.generator is not None
        self.reached_ms = reached_ms
        self.idle = False
        self._uid, self._subtask, self._clock = context.uid, context.subtask.index, context.clock
        self._at = f"split {split!r}, " if split is not None else ""
        self._split = split
        with self._calling("the watermark generator", strategy.generator):
            self._generator = _checked(strategy.generator(_Context(split or "", self._subtask, context.clock)))
            self._check_state()
        kind = type(self._generator)
        self._by_batch = kind.on_batch is not WatermarkGenerator.on_batch
        self.by_row = not self._by_batch and kind.on_event is not WatermarkGenerator.on_event
        """True if Python runs for each record."""
        self._periodic = kind.on_periodic_emit is not WatermarkGenerator.on_periodic_emit
        self._interval_ms = strategy.emit_interval_ms
        self._asked_ms = self._clock.now_ms()
        if state is not None:
            with self._calling("restore_state", self._generator.restore_state, state):
                self._generator.restore_state(state)

    def _check_state(self) -> None:
        if self._split is None and type(self._generator).snapshot_state is not WatermarkGenerator.snapshot_state:
            raise TypeError(
                f"{type(self._generator).__name__} has snapshot_state, but only a generator of a split keeps state: "
                "call assign_timestamps_and_watermarks on the stream of the source"
            )

    # --- what the generator is told ---

    def on_batch(self, batch: pa.RecordBatch, times: pa.Array) -> None:
        """Tells the generator of a batch, and lets it emit a watermark behind it."""
        if times.null_count:
            timed = times.is_valid()
            batch, times = batch.filter(timed), times.filter(timed)
        if batch.num_rows and self._by_batch:
            names = [name for name in batch.schema.names if name != EVENT_TIME]
            with self._calling("on_batch", self._generator.on_batch):
                self._generator.on_batch(batch.select(names), times, self)
        elif self.by_row:
            self._on_events(batch, times)
        self._emit()

    def _on_events(self, batch: pa.RecordBatch, times: pa.Array) -> None:
        for event, time in zip(records_of(batch), times.to_pylist(), strict=True):
            try:
                self._generator.on_event(event, time, self)
            except Exception as error:
                raise self._failed("on_event", self._generator.on_event, error, short(event)) from error

    def on_time(self) -> bool:
        """Lets the generator emit if it was not asked for the interval; returns whether it was due."""
        due_ms = self.due_ms
        if due_ms is None or self._clock.now_ms() < due_ms:
            return False
        self._emit()
        return True

    def _emit(self) -> None:
        self._asked_ms = self._clock.now_ms()
        if self._periodic:
            with self._calling("on_periodic_emit", self._generator.on_periodic_emit):
                self._generator.on_periodic_emit(self)

    @property
    def due_ms(self) -> float | None:
        """When to call `on_time`; None: never."""
        return self._asked_ms + self._interval_ms if self._periodic else None

    # --- what it answers ---

    def emit_watermark(self, timestamp_ms: int) -> None:
        reached_ms = _time(timestamp_ms)
        self.idle = False
        self.reached_ms = max(self.reached_ms, reached_ms)

    def mark_idle(self) -> None:
        if self._split is None:
            raise TypeError(
                "only the splits of a source fall idle: call assign_timestamps_and_watermarks on the stream of the "
                "source, or leave mark_idle() out"
            )
        self.idle = True

    def mark_active(self) -> None:
        self.idle = False

    # --- state ---

    def state(self) -> Any:
        """Returns a copy of what a snapshot has to keep of the generator; None: nothing."""
        with self._calling("snapshot_state", self._generator.snapshot_state):
            given = self._generator.snapshot_state()
            try:
                kept = msgspec.json.decode(msgspec.json.encode(given))
            except (TypeError, ValueError, OverflowError, RecursionError):
                kept = ...
            if kept is ... or kept != given:
                raise TypeError(
                    f"it returned {short(given)}, which a snapshot can't keep: return numbers (no NaN), texts, lists, "
                    "and dicts whose keys are texts; turn numpy's values into Python's with .item() or .tolist()"
                )
        return kept

    # --- errors ---

    @contextmanager
    def _calling(self, what: str, method: Callable[..., Any], given: Any = None) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise self._failed(what, method, error, "" if given is None else short(given)) from error

    def _failed(self, what: str, method: Callable[..., Any], error: Exception, record: str) -> UserFunctionError:
        failed = UserFunctionError(self._uid, self._subtask, f"{self._at}{what}", error, record)
        if not failed.raised.line:  # it returned something wrong
            failed.raised = msgspec.structs.replace(failed.raised, line=defined_at(method))
        return failed


class _Context(WatermarkGeneratorContext):
    def __init__(self, split: str, subtask_index: int, clock: Clock) -> None:
        self.split = split
        self.subtask_index = subtask_index
        self._clock = clock

    def current_processing_time(self) -> int:
        return self._clock.wall_ms()


_CALLS = ("on_event", "on_batch", "on_periodic_emit")


def _checked(made: object) -> WatermarkGenerator:
    if not isinstance(made, WatermarkGenerator):
        raise TypeError(f"the function of for_generator returned {short(made)}: return a WatermarkGenerator")
    if all(getattr(type(made), name) is getattr(WatermarkGenerator, name) for name in _CALLS):
        raise TypeError(f"{type(made).__name__} would never emit a watermark: define one of {', '.join(_CALLS)}")
    return made


def _time(given: Any) -> int:
    """Returns the time of a watermark. One before all times is none."""
    try:
        time_ms = index(given)
    except TypeError:
        raise TypeError(f"emit_watermark takes milliseconds since 1970, an int, not {short(given)}") from None
    if time_ms >= LATEST_MS:
        raise ValueError(
            f"emit_watermark({time_ms}) is after the year 9999: a watermark is in milliseconds since 1970; the end of "
            "event time comes by itself when the source ends"
        )
    return time_ms if time_ms >= EARLIEST_MS else MIN_WATERMARK
