"""`Sessions`: the merging windows of one key, and where the contents of each lie.

Contents stay where the first window of a session has put them, so a session that grows with each record moves nothing.

Invariant: no two sessions of a key overlap or touch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.state.windows.assigners import Span


@dataclass(frozen=True)
class Merge:
    """What a new window did to the sessions of a key.

    `window` is the session that it belongs to now, `held` the place of its contents. `merged` are the windows that are
    gone, and `moved` the places whose contents have to move to `held`.
    """

    window: Span
    held: Span
    merged: tuple[Span, ...] = ()
    moved: tuple[Span, ...] = ()


class Sessions:
    """`saved`: a list of [start, end, start of the place of its contents, end of that place]."""

    def __init__(self, saved: Sequence[Sequence[int]] | None) -> None:
        self._held: dict[Span, Span] = {(of[0], of[1]): (of[2], of[3]) for of in saved or ()}

    def held(self, window: Span) -> Span | None:
        """Returns the place of a session's contents; None if there is no such session any more."""
        return self._held.get(window)

    def add(self, window: Span) -> Merge:
        """Adds a window and merges it with those that it overlaps or touches."""
        start, end = window
        touched = sorted(other for other in self._held if other[0] <= end and start <= other[1])
        if not touched:
            self._held[window] = window
            return Merge(window, window)
        merged = (min(start, touched[0][0]), max(end, max(other[1] for other in touched)))
        places = [self._held[other] for other in touched]
        if merged == touched[0]:
            return Merge(merged, places[0])
        for other in touched:
            del self._held[other]
        self._held[merged] = places[0]
        return Merge(merged, places[0], tuple(touched), tuple(places[1:]))

    def remove(self, window: Span) -> None:
        self._held.pop(window, None)

    def saved(self) -> list[list[int]]:
        return [[*window, *held] for window, held in self._held.items()]
