"""The triggers that Weir has. They do what Flink's triggers of the same names do."""

from __future__ import annotations

from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError
from engine.core.functions import Row
from engine.core.state_types import ReducingStateDescriptor
from engine.core.triggers import OnMergeContext, Trigger, TriggerContext, TriggerResult
from engine.core.windows import Window
from engine.protocol.signals import MAX_WATERMARK

CONTINUE, FIRE = TriggerResult.CONTINUE, TriggerResult.FIRE


class EventTimeTrigger(Trigger):
    """Fires when the watermark reaches the end of the window, and for each record that comes later and still counts.

    It is the trigger of event-time windows if no other is set.
    """

    @classmethod
    def create(cls) -> EventTimeTrigger:
        """Returns the trigger."""
        return cls()

    def on_element(self, element: Row, timestamp: int | None, window: Window, context: TriggerContext) -> TriggerResult:
        if window.max_timestamp() <= context.get_current_watermark():
            return FIRE
        context.register_event_time_timer(window.max_timestamp())
        return CONTINUE

    def on_event_time(self, time: int, window: Window, context: TriggerContext) -> TriggerResult:
        return FIRE if time == window.max_timestamp() else CONTINUE

    def on_processing_time(self, time: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    def on_merge(self, window: Window, context: OnMergeContext) -> None:
        if window.max_timestamp() > context.get_current_watermark():
            context.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Window, context: TriggerContext) -> None:
        context.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(Trigger):
    """Fires when the clock reaches the end of the window. It is the default trigger of processing-time windows."""

    @classmethod
    def create(cls) -> ProcessingTimeTrigger:
        """Returns the trigger."""
        return cls()

    def on_element(self, element: Row, timestamp: int | None, window: Window, context: TriggerContext) -> TriggerResult:
        context.register_processing_time_timer(window.max_timestamp())
        return CONTINUE

    def on_event_time(self, time: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    def on_processing_time(self, time: int, window: Window, context: TriggerContext) -> TriggerResult:
        return FIRE

    def on_merge(self, window: Window, context: OnMergeContext) -> None:
        context.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: Window, context: TriggerContext) -> None:
        context.delete_processing_time_timer(window.max_timestamp())


class NeverTrigger(Trigger):
    """Never fires. It is the trigger of global windows if no other is set."""

    def on_element(self, element: Row, timestamp: int | None, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    def on_event_time(self, time: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    def on_processing_time(self, time: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    def on_merge(self, window: Window, context: OnMergeContext) -> None:
        """Has nothing to merge."""

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Has nothing to clear."""


class CountTrigger(Trigger):
    """Fires after each `max_count` records of a window."""

    def __init__(self, max_count: int) -> None:
        if type(max_count) is not int or max_count < 1:
            raise JobError(f"CountTrigger.of({max_count!r}): it fires after a number of records: 1 or more")
        self._max_count = max_count
        self._count = ReducingStateDescriptor("count", _sum, "long")

    @classmethod
    def of(cls, max_count: int) -> CountTrigger:
        """Returns a trigger that fires after each `max_count` records."""
        return cls(max_count)

    def on_element(self, element: Row, timestamp: int | None, window: Window, context: TriggerContext) -> TriggerResult:
        count = context.get_partitioned_state(self._count)
        count.add(1)
        if count.get() < self._max_count:
            return CONTINUE
        count.clear()
        return FIRE

    def on_event_time(self, time: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    def on_processing_time(self, time: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    def on_merge(self, window: Window, context: OnMergeContext) -> None:
        context.merge_partitioned_state(self._count)

    def clear(self, window: Window, context: TriggerContext) -> None:
        context.get_partitioned_state(self._count).clear()


class ContinuousEventTimeTrigger(Trigger):
    """Fires whenever the watermark has moved by an interval, and at the end of the window.

    The end of the input is the end of a global window: it then fires once more, not for all intervals to come.
    """

    def __init__(self, interval: Duration) -> None:
        self._interval_ms = _interval("ContinuousEventTimeTrigger", interval)
        self._next = ReducingStateDescriptor("next fire", min, "long")

    @classmethod
    def of(cls, interval: Duration) -> ContinuousEventTimeTrigger:
        """Returns a trigger that fires whenever event time has moved by an interval such as "10 s"."""
        return cls(interval)

    def on_element(self, element: Row, timestamp: int | None, window: Window, context: TriggerContext) -> TriggerResult:
        if window.max_timestamp() <= context.get_current_watermark():
            return FIRE
        context.register_event_time_timer(window.max_timestamp())
        if timestamp is not None and context.get_partitioned_state(self._next).get() is None:
            self._register(timestamp - timestamp % self._interval_ms, window, context)
        return CONTINUE

    def on_event_time(self, time: int, window: Window, context: TriggerContext) -> TriggerResult:
        if time == window.max_timestamp():
            return FIRE
        due = context.get_partitioned_state(self._next)
        if due.get() != time:
            return CONTINUE
        due.clear()
        self._register(time, window, context)
        return FIRE

    def on_processing_time(self, time: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    def on_merge(self, window: Window, context: OnMergeContext) -> None:
        context.merge_partitioned_state(self._next)
        if window.max_timestamp() > context.get_current_watermark():
            context.register_event_time_timer(window.max_timestamp())
        due = context.get_partitioned_state(self._next).get()
        if due is not None:
            context.register_event_time_timer(due)

    def clear(self, window: Window, context: TriggerContext) -> None:
        due = context.get_partitioned_state(self._next)
        if due.get() is not None:
            context.delete_event_time_timer(due.get())
            due.clear()
        context.delete_event_time_timer(window.max_timestamp())

    def _register(self, time: int, window: Window, context: TriggerContext) -> None:
        next_ms, last_ms = time + self._interval_ms, window.max_timestamp()
        if next_ms > last_ms or context.get_current_watermark() == last_ms == MAX_WATERMARK:
            next_ms = last_ms
        context.get_partitioned_state(self._next).add(next_ms)
        context.register_event_time_timer(next_ms)


class ContinuousProcessingTimeTrigger(Trigger):
    """Fires whenever the clock has moved by an interval, as long as the window is there."""

    def __init__(self, interval: Duration) -> None:
        self._interval_ms = _interval("ContinuousProcessingTimeTrigger", interval)
        self._next = ReducingStateDescriptor("next fire", min, "long")

    @classmethod
    def of(cls, interval: Duration) -> ContinuousProcessingTimeTrigger:
        """Returns a trigger that fires whenever the clock has moved by an interval such as "10 s"."""
        return cls(interval)

    def on_element(self, element: Row, timestamp: int | None, window: Window, context: TriggerContext) -> TriggerResult:
        if context.get_partitioned_state(self._next).get() is None:
            now = context.get_current_processing_time()
            self._register(now - now % self._interval_ms, window, context)
        return CONTINUE

    def on_event_time(self, time: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    def on_processing_time(self, time: int, window: Window, context: TriggerContext) -> TriggerResult:
        due = context.get_partitioned_state(self._next)
        if due.get() != time:
            return CONTINUE
        due.clear()
        self._register(time, window, context)
        return FIRE

    def on_merge(self, window: Window, context: OnMergeContext) -> None:
        context.merge_partitioned_state(self._next)
        due = context.get_partitioned_state(self._next).get()
        if due is not None:
            context.register_processing_time_timer(due)

    def clear(self, window: Window, context: TriggerContext) -> None:
        due = context.get_partitioned_state(self._next)
        if due.get() is not None:
            context.delete_processing_time_timer(due.get())
            due.clear()

    def _register(self, time: int, window: Window, context: TriggerContext) -> None:
        """Registers the next time; not after the end of a window of processing time, which ends there."""
        next_ms, last_ms = time + self._interval_ms, window.max_timestamp()
        if time < last_ms < next_ms:
            next_ms = last_ms
        context.get_partitioned_state(self._next).add(next_ms)
        context.register_processing_time_timer(next_ms)


class PurgingTrigger(Trigger):
    """Does what another trigger does, and drops the contents of the window whenever it fires."""

    def __init__(self, nested: Trigger) -> None:
        if not isinstance(nested, Trigger):
            raise JobError(f"PurgingTrigger.of takes a trigger such as CountTrigger.of(3), not {nested!r}")
        self._nested = nested

    @property
    def nested(self) -> Trigger:
        """The trigger that says when to fire."""
        return self._nested

    @classmethod
    def of(cls, nested: Trigger) -> PurgingTrigger:
        """Returns a trigger that fires when `nested` fires, and drops the contents of the window then."""
        return cls(nested)

    def on_element(self, element: Row, timestamp: int | None, window: Window, context: TriggerContext) -> TriggerResult:
        return _purging(self._nested.on_element(element, timestamp, window, context))

    def on_event_time(self, time: int, window: Window, context: TriggerContext) -> TriggerResult:
        return _purging(self._nested.on_event_time(time, window, context))

    def on_processing_time(self, time: int, window: Window, context: TriggerContext) -> TriggerResult:
        return _purging(self._nested.on_processing_time(time, window, context))

    def on_merge(self, window: Window, context: OnMergeContext) -> None:
        self._nested.on_merge(window, context)

    def can_merge(self) -> bool:
        return self._nested.can_merge()

    def clear(self, window: Window, context: TriggerContext) -> None:
        self._nested.clear(window, context)

    def __str__(self) -> str:
        return f"PurgingTrigger of {described(self._nested)}"


def described(trigger: Trigger) -> str:
    """Names a trigger in the description of a job. An author may rename a class of his own."""
    return str(trigger) if type(trigger).__module__ == __name__ else "a trigger of the job"


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result is FIRE else result


def _sum(left: int, right: int) -> int:
    return left + right


def _interval(what: str, given: Duration) -> int:
    interval_ms = to_ms(given, f"{what}.of")
    if interval_ms <= 0:
        raise JobError(f"{what}.of({given!r}): the interval must be positive")
    return interval_ms
