"""`KeyTimers`: the timers of one keyed operator subtask, and the `TimerService` of its function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from engine.core.ports import Clock
from engine.core.timers import TimeDomain, TimerService
from engine.protocol.signals import MIN_WATERMARK
from engine.state.group_clock import GroupClock
from engine.state.key_hash import hash_columns
from engine.state.keyed.backend import Key, KeyedBackend
from engine.state.timers import TimerQueue

EVENT_TIMERS, PROCESSING_TIMERS = "event-time timers", "processing-time timers"
TIMERS = (EVENT_TIMERS, PROCESSING_TIMERS)
"""The names of their parts in a snapshot. A state of a function can't have them."""

OF_WINDOWS = "(window) "
"""The beginning of the names of the parts that a window operator with functions keeps itself."""

_LIMIT = 2**63


class KeyTimers(TimerService):
    """`allowed`: the function has `on_timer`. `hashed`: the number of key columns, if others are behind them.

    `after_ms`: processing-time timers fire so long after their time. With 1 ms, no record of a time comes after its
    timer, as with watermarks.
    """

    def __init__(
        self,
        keyed: KeyedBackend,
        fields: Sequence[pa.Field],
        clock: Clock,
        group_clock: GroupClock,
        allowed: bool,
        hashed: int | None = None,
        after_ms: int = 0,
    ) -> None:
        self._keyed = keyed
        self._fields = list(fields)
        self._clock = clock
        self._group_clock = group_clock
        self._allowed = allowed
        self._after_ms = after_ms
        self._hashed = len(self._fields) if hashed is None else hashed
        self._queues = {EVENT_TIMERS: TimerQueue(fields), PROCESSING_TIMERS: TimerQueue(fields)}
        self._event = self._queues[EVENT_TIMERS]
        self._processing = self._queues[PROCESSING_TIMERS]
        self._undo: list[tuple[Callable[[int, Key], None], int, Key]] | None = None

    # --- for functions ---

    def current_processing_time(self) -> int:
        return self._clock.wall_ms()

    def current_watermark(self) -> int:
        """Returns the watermark of the current key's group."""
        if not self._group_clock.uneven:
            return self._group_clock.now_ms
        values = list(zip(self._keyed.key, self._fields, strict=True))[: self._hashed]
        hashes = hash_columns([pa.array([value], field.type) for value, field in values])
        return int(self._group_clock.of_rows(hashes)[0])

    def register_event_time_timer(self, timestamp: int) -> None:
        self._register(self._event, timestamp, "register_event_time_timer")

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._register(self._processing, timestamp, "register_processing_time_timer")

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._delete(self._event, timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._delete(self._processing, timestamp)

    def _register(self, queue: TimerQueue, timestamp: int, call: str) -> None:
        if not self._allowed:
            raise TypeError(
                f"{call}: the function has no on_timer(timestamp, context), so nothing would happen: add it"
            )
        if type(timestamp) is not int or not -_LIMIT <= timestamp < _LIMIT:
            raise TypeError(f"{call} takes Unix milliseconds, an int, not {timestamp!r}")
        key = self._keyed.key
        if self._undo is not None and not queue.holds(timestamp, key):
            self._undo.append((queue.delete, timestamp, key))
        queue.register(timestamp, key)

    def _delete(self, queue: TimerQueue, timestamp: int) -> None:
        key = self._keyed.key
        if self._undo is not None and queue.holds(timestamp, key):
            self._undo.append((queue.register, timestamp, key))
        queue.delete(timestamp, key)

    # --- for the operator ---

    def begin_record(self) -> None:
        """Begins a record, of which `undo_record` may take back what was done to the timers."""
        self._undo = []

    def end_record(self) -> None:
        """Ends a record: what was done to the timers stays."""
        self._undo = None

    def undo_record(self) -> None:
        """Undoes every change since `begin_record`, the last one first."""
        changes, self._undo = self._undo or [], None
        for call, timestamp_ms, key in reversed(changes):
            call(timestamp_ms, key)

    @property
    def event_due(self) -> bool:
        """True if the watermark has reached an event-time timer."""
        first_ms = self._event.next_ms()
        return first_ms is not None and first_ms <= self._group_clock.now_ms

    @property
    def processing_due_ms(self) -> float | None:
        """The monotonic time of the first processing-time timer."""
        first_ms = self._processing.next_ms()
        if first_ms is None:
            return None
        return self._clock.now_ms() + max(0, first_ms + self._after_ms - self._clock.wall_ms())

    def pop(self, domain: TimeDomain) -> tuple[int, Key] | None:
        """Removes and returns a timer that is due now."""
        if domain is TimeDomain.EVENT_TIME:
            return self._event.pop(self._group_clock.now_ms)
        return self._processing.pop(self._clock.wall_ms() - self._after_ms) if len(self._processing) else None

    def snapshot(self) -> list[tuple[str, Callable[[], pa.Table]]]:
        return [(name, queue.freeze()) for name, queue in self._queues.items() if len(queue)]

    def load(self, name: str, table: pa.Table) -> None:
        self._queues[name].load(table, self._keyed.canonical)


class NoTimers(TimerService):
    """The service of a function without keys: it tells the time only. The operator sets `watermark_ms`."""

    def __init__(self, clock: Clock) -> None:
        self.watermark_ms = MIN_WATERMARK
        self._clock = clock

    def current_processing_time(self) -> int:
        return self._clock.wall_ms()

    def current_watermark(self) -> int:
        return self.watermark_ms

    def register_event_time_timer(self, timestamp: int) -> None:
        raise _without_keys("register_event_time_timer")

    def register_processing_time_timer(self, timestamp: int) -> None:
        raise _without_keys("register_processing_time_timer")

    def delete_event_time_timer(self, timestamp: int) -> None:
        raise _without_keys("delete_event_time_timer")

    def delete_processing_time_timer(self, timestamp: int) -> None:
        raise _without_keys("delete_processing_time_timer")


def _without_keys(call: str) -> TypeError:
    return TypeError(f"{call}: a timer belongs to a key: call key_by(...) first, and extend a function with keys")
