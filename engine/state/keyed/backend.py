"""`KeyedBackend`: the interface through which an operator uses its keyed state, wherever the values are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from engine.core.state_types import StateDescriptor

Key = tuple[Any, ...]


class _NoKey(tuple[Any, ...]):
    """A key whose lookup raises, so that states need not check on each access whether there is a key."""

    def __hash__(self) -> int:
        raise TypeError(
            "a broadcast record has no key, so there is no keyed state to read or write: use "
            "context.apply_to_keyed_state(descriptor, function)"
        )


NO_KEY: Key = _NoKey()


class KeyedBackend(Protocol):
    """The keyed state of one operator subtask."""

    key: Key
    """The current key. The operator sets it for each record, in the form that `canonical` returns."""

    def canonical(self, keys: Iterator[Key]) -> Iterator[Key]:
        """Returns the keys in the form in which they have to be set."""

    def state(self, descriptor: StateDescriptor) -> Any:
        """Returns the state of this name, of the kind that the descriptor says; it follows the current key."""

    def apply_to_all(self, descriptor: StateDescriptor, function: Callable[[Key, Any], None]) -> None:
        """Calls `function` for each key that has a value; afterwards there is no current key."""

    @property
    def holds_changeable(self) -> bool:
        """True if a state has values that a function could change in place."""

    def begin_record(self) -> None:
        """Begins a record, of which `undo_record` may take back what was done to the state."""

    def end_record(self) -> None:
        """Ends a record: what was done to the state stays."""

    def undo_record(self) -> None:
        """Puts the states back to what they were at `begin_record`. Only a backend that was made for it can do that."""

    def restore(self, name: str, table: pa.Table) -> None:
        """Takes part of a saved state. Must be called before the state is asked for."""

    @property
    def unclaimed(self) -> list[str]:
        """The names of restored states that were not asked for."""

    def snapshot(self) -> list[tuple[str, Callable[[], pa.Table]]]:
        """Returns for each state name a function that makes its table. Later updates do not show in the table."""
