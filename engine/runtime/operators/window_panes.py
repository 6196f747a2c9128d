"""`Panes`: sliding windows keep each record once, in its pane, and combine the panes of a window when it fires (B5).

A pane is a stretch of time that no window divides. Its item (a reduced record, or an accumulator) is kept per key, by
the start of the pane, until the last window that has it is forgotten. What is in a pane never changes when a window
fires: a window combines copies.

Only windows that overlap share panes, with contents that combine, with the default trigger and without an evictor:
another trigger is asked about each record of each window, and may drop the contents of one window alone.
"""

from __future__ import annotations

from typing import Any

from engine.core.builtin_triggers import EventTimeTrigger, ProcessingTimeTrigger
from engine.core.evictors import Evictor
from engine.core.functions import Row
from engine.core.state_types import MapState
from engine.core.triggers import Trigger
from engine.runtime.operators.window_contents import Folding
from engine.state.windows.assigners import Assigner, Span, SpanAssigner
from engine.state.windows.spans import Spans


def default_trigger(assigner: Assigner, trigger: Trigger) -> bool:
    """Says whether the trigger is the one that the windows have by default.

    It drops no contents. A record in an open window that has others and that is not due yet changes nothing for it.
    """
    return type(trigger) is (EventTimeTrigger if assigner.event_time else ProcessingTimeTrigger)


def share_panes(assigner: Assigner, trigger: Trigger, evictor: Evictor | None) -> bool:
    """Says whether these windows share panes if their contents combine."""
    if not isinstance(assigner, SpanAssigner) or not assigner.spans.overlap or evictor is not None:
        return False
    return default_trigger(assigner, trigger)


class Panes:
    """The panes of the current key. `state` has their items, by the start of the pane."""

    def __init__(self, spans: Spans, contents: Folding, state: MapState[int, Any]) -> None:
        self._spans = spans
        self._contents = contents
        self._state = state

    def add(self, at_ms: int, record: Row) -> bool:
        """Adds a record with this time to its pane. Returns True if it is the first one there."""
        pane, state = self._spans.stretch(at_ms), self._state
        opened = not state.contains(pane)
        contents = self._contents
        item = contents.first(record, at_ms) if opened else contents.more(state.get(pane), record, at_ms)
        try:
            state.put(pane, item)
        except TypeError:
            raise contents.unfit(item) from None
        return opened

    def of_window(self, span: Span) -> list[Any]:
        """Returns copies of the items of a window's panes, in the order of time."""
        start, end = span
        held = self._state.entries()
        return [self._contents.copied(held[pane]) for pane in sorted(held) if start <= pane < end]

    def forget(self, span: Span) -> None:
        """Drops the panes that no window after this one has."""
        for pane in self._spans.last_stretches(span[0]):
            self._state.remove(pane)
