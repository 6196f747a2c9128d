"""`Undoable`: the values of one state, which can be put back to what they were before the current record.

An operator that leaves out records that it can't process needs this: its function may have changed state before it
raised. Only the current key is noted, since a function sees no other. What is noted is a copy if the function could
change the value in place; a list that is only added to is noted by its length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.core.state_types import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from engine.state.copies import value_copier
from engine.state.keyed.backend import Key
from engine.state.keyed.heap_states import HasKey
from engine.state.keyed.layout import layout_of

_NOTHING = object()


@dataclass(frozen=True)
class _Length:
    """A list of a key, and how long it was."""

    items: list[Any]
    length: int


class Undoable(dict[Key, Any]):
    def __init__(self, values: dict[Key, Any], backend: HasKey, descriptor: StateDescriptor) -> None:
        super().__init__(values)
        self._backend = backend
        self._copy = value_copier(layout_of(descriptor, ()).kind)
        self._lists = isinstance(descriptor, ListStateDescriptor)
        self._maps = isinstance(descriptor, MapStateDescriptor)
        self._before: dict[Key, Any] | None = None

    def begin(self) -> None:
        """Begins to note what is changed."""
        self._before = {}

    def end(self) -> None:
        """Forgets what was noted. What is done between two records, as by timers, can't be undone."""
        self._before = None

    def undo(self) -> list[Key]:
        """Puts everything back to what it was at `begin`; returns the keys that may have changed."""
        before, self._before = self._before or {}, None
        for key, held in before.items():
            if held is _NOTHING:
                super().pop(key, None)
            elif isinstance(held, _Length):
                del held.items[held.length :]
                super().__setitem__(key, held.items)
            else:
                super().__setitem__(key, held)
        return list(before)

    # --- what states do with their values ---

    def get(self, key: Key, default: Any = None) -> Any:
        self._note(key)
        return super().get(key, default)

    def setdefault(self, key: Key, default: Any = None) -> Any:
        held, before = super().get(key), self._before
        if before is not None and self._lists and held is not None and key not in before and key == self._backend.key:
            before[key] = _Length(held, len(held))  # it is about to be added to
        else:
            self._note(key)
        return super().setdefault(key, default)

    def pop(self, key: Key, *default: Any) -> Any:
        self._note(key)
        return super().pop(key, *default)

    def __setitem__(self, key: Key, value: Any) -> None:
        self._note(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Key) -> None:
        self._note(key)
        super().__delitem__(key)

    def _note(self, key: Key) -> None:
        before = self._before
        if before is None:
            return
        if key not in before:
            if key == self._backend.key:
                held = super().get(key, _NOTHING)
                before[key] = held if held is _NOTHING else self._copied(held)
        elif isinstance(known := before[key], _Length):  # a function may be about to change the items themselves
            before[key] = self._copied(known.items[: known.length])

    def _copied(self, held: Any) -> Any:
        if self._lists:
            return list(map(self._copy, held))
        if self._maps:
            return dict(zip(held, map(self._copy, held.values()), strict=True))
        return self._copy(held)
