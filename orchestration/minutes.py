"""Puts a job's history together by minutes, the unit in which Dagster hears of it. Pure: no clock, no I/O.

One event of Dagster costs some kilobytes for good, so a job with a checkpoint each second must not report each of them
as an event: all of a minute are one, with each of them as a row of its table.

Invariant: a minute is reported when it is over, so each line of the history is in one minute, wherever a tick ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from engine.host.rotated import Position
from engine.jobmaster.events import Aborted, AnyEvent, AttemptFailed, Claimed, Completed
from engine.protocol import ledger

MINUTE_MS = 60_000
GRACE_MS = 10_000
"""A minute is over this long after its end: its last line may still be under way, and so may the event of a run."""
AHEAD_MS = 5_000
"""A line from this far in the future was written before the clock was set back: nothing waits for its minute."""


@dataclass(frozen=True)
class Counted:
    """A completed checkpoint, with the rows that it added. None: nobody knows, since the one before is not kept."""

    event: Completed
    rows_read: int | None
    rows_committed: int | None
    by_sink: Mapping[str, int] = field(default_factory=dict)
    """The rows of each sink, by uid."""


@dataclass(frozen=True)
class Minute:
    """The part of a history that is in one minute. `end` is the position behind it, `totals` the ledger there."""

    start_ms: int
    end: Position
    totals: Mapping[str, int] | None
    completed: tuple[Counted, ...] = ()
    failed: tuple[Aborted, ...] = ()
    restarted: bool = False

    @property
    def until_ms(self) -> int:
        return self.start_ms + MINUTE_MS


def minutes(
    lines: Iterable[tuple[AnyEvent, Position]], totals: Mapping[str, int] | None, now_ms: int
) -> Iterator[Minute]:
    """Yields the minutes that are over. `totals` is the ledger before the first line; None: nobody knows it.

    Behind a last minute that is not over nothing is yielded: a later call begins with it again.
    """
    parts = groupby(lines, key=lambda line: line[0].at_ms // MINUTE_MS)
    held: Minute | None = None
    for number, part in parts:
        if held is not None:
            yield held
        held = _minute(number * MINUTE_MS, list(part), totals)
        totals = held.totals
    if held is not None and _is_over(held, now_ms):
        yield held


def _is_over(minute: Minute, now_ms: int) -> bool:
    return now_ms >= minute.start_ms + MINUTE_MS + GRACE_MS or minute.start_ms > now_ms + AHEAD_MS


def _minute(start_ms: int, part: list[tuple[AnyEvent, Position]], totals: Mapping[str, int] | None) -> Minute:
    completed: list[Counted] = []
    for event, _ in part:
        if isinstance(event, Completed):
            completed.append(count(event, totals))
            totals = event.ledger
    return Minute(
        start_ms,
        part[-1][1],
        totals,
        tuple(completed),
        tuple(event for event, _ in part if isinstance(event, Aborted)),
        any(isinstance(event, AttemptFailed | Claimed) for event, _ in part),
    )


def count(event: Completed, before: Mapping[str, int] | None) -> Counted:
    """Returns a checkpoint with its rows: the difference of two ledgers."""
    if event.epoch == 1:
        before = {}  # the job is new, or was deleted and begun anew: its totals start at zero
    if before is None:
        return Counted(event, None, None)
    grown = {name: max(0, total - before.get(name, 0)) for name, total in event.ledger.items()}
    by_sink = {name.removeprefix(ledger.SINK): rows for name, rows in grown.items() if name.startswith(ledger.SINK)}
    read = sum(rows for name, rows in grown.items() if name.startswith(ledger.source_rows("")))
    return Counted(event, read, sum(by_sink.values()), by_sink)
