"""The job of the kind "joined": an interval join of the records with a second source, the marks.

No record is late, so each epoch must hold exactly the pairs of the records and marks that were read before its barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.api import DataStream, StreamEnvironment
from engine.connectors.table import TableSink
from tests.simulation import timed
from tests.simulation.world import Violation

LOWER_MS, UPPER_MS = -60, 100
MARKS, MARK_STEP_MS = 30, 16

Rows = list[tuple[Any, ...]]


def define(
    env: StreamEnvironment, stamped: DataStream, keys: int, base_ms: int, out: TableSink, drift_ms: int | None
) -> None:
    marks = timed.marks_of(env, keys, base_ms, MARKS, MARK_STEP_MS, drift_ms)
    joined = stamped.key_by("key").interval_join(marks.key_by("of")).between(LOWER_MS, UPPER_MS)
    joined.select("n", "mark", "key", "of", uid="joined").sink_to(out, uid="out")


def check(
    rows: Rows,
    due: Sequence[tuple[int, str, int]],
    marks: Sequence[tuple[int, str, int]],
    late: int,
    each_once: Callable[[str, Sequence[int], Sequence[int]], None],
) -> None:
    """Checks the published pairs. `due` and `marks`: (number, key, time) of what was read."""
    if late:
        raise Violation("no_loss", f"{late} records were late for the join, and none is")
    crossed = [row for row in rows if row[2] != row[3]]
    if crossed:
        raise Violation("keys", f"records of different keys are joined: {crossed[:4]}")
    wanted = [
        n * MARKS + mark
        for n, key, time_ms in due
        for mark, of, mark_ms in marks
        if key == of and LOWER_MS <= mark_ms - time_ms <= UPPER_MS
    ]
    each_once("out", wanted, [n * MARKS + mark for n, mark, *_ in rows])


def check_final(held: int) -> None:
    """Event time has ended, so nothing waits for a partner any more."""
    if held:
        raise Violation("join_state", f"{held} rows are still kept behind the last watermark")
