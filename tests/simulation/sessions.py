"""The job of the kind "sessions": session windows with a trigger of the job's own, which fires early and drops.

Every third record of a session makes it emit and drop what it holds; its end emits the rest. So each record is emitted
once, and before that it is in the contents of a window. Records reach a subtask out of order, so sessions merge, and
with them the counts of the trigger. No record is late.

Either a function emits the records of a window, or a built-in aggregate does, which keeps all of their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from engine.api import (
    DataStream,
    EventTimeSessionWindows,
    EventTimeTrigger,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    TriggerResult,
    WindowContext,
    count,
    top_n,
)
from engine.connectors.table import TableSink
from engine.core.functions import Row
from engine.runtime.operators.windowed_functions import CONTENTS as CONTENTS
from tests.simulation.world import Violation

GAP_MS, EARLY, ALL = 50, 3, 10_000
OUT = "n long, key string, start long, end long, last boolean"

Rows = list[tuple[Any, ...]]


class EarlyAndLast(EventTimeTrigger):
    def __init__(self) -> None:
        self._count = ReducingStateDescriptor("count", lambda left, right: left + right, "long")

    def on_element(self, element: Any, timestamp: Any, window: Any, context: Any) -> TriggerResult:
        super().on_element(element, timestamp, window, context)
        count = context.get_partitioned_state(self._count)
        count.add(1)
        if count.get() < EARLY:
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE_AND_PURGE

    def on_merge(self, window: Any, context: Any) -> None:
        super().on_merge(window, context)
        context.merge_partitioned_state(self._count)

    def clear(self, window: Any, context: Any) -> None:
        super().clear(window, context)
        context.get_partitioned_state(self._count).clear()


class Each(ProcessWindowFunction):
    """Emits each record with the bounds of its session as they are now; `last`: the session is over."""

    def process(self, key: Any, context: WindowContext, elements: Iterable[Row]) -> Iterable[Row]:
        window = context.window()
        last = context.current_watermark() >= window.max_timestamp()
        for element in elements:
            yield {"n": element["n"], "key": key, "start": window.start, "end": window.end, "last": last}


def define(stamped: DataStream, out: TableSink, aggregated: bool) -> None:
    sessions = stamped.key_by("key").window(EventTimeSessionWindows.with_gap(GAP_MS)).trigger(EarlyAndLast())
    if aggregated:
        numbers = sessions.aggregate(rows=count(), ns=top_n("n", ALL), uid="sessions")
        numbers.flat_map(_each, schema=OUT).sink_to(out, uid="out")
        return
    sessions.process(Each(), uid="sessions", schema=OUT).sink_to(out, uid="out")


def _each(result: Row) -> Iterable[Row]:
    assert result["rows"] == len(result["ns"]), "a record was counted, and its number is lost"
    start, end = (round(result[name].timestamp() * 1000) for name in ("window_start", "window_end"))
    return [{"n": n, "key": result["key"], "start": start, "end": end, "last": False} for n in result["ns"]]


def held_in(item: Row) -> list[int]:
    """Returns the numbers of the records that an item of a window's contents holds."""
    if "rows" not in item:
        return [item["n"]]
    (folded,) = (item["partial"] or {"none": []}).values()
    return [*(folded or []), *item["pending"]["n"]]


def check(
    rows: Rows,
    held: Sequence[int],
    due: Sequence[int],
    each_once: Callable[[str, Sequence[int], Sequence[int]], None],
) -> None:
    """Checks that each record was published, or is in a window of the snapshot."""
    each_once("out", due, [row[0] for row in rows] + list(held))


def check_final(rows: Rows, held: Sequence[int], key_of: Callable[[int], str], stamp_of: Callable[[int], int]) -> None:
    """Checks the bounds of all sessions: of those that were over exactly, of those that fired early as a part."""
    if held:
        raise Violation("windows", f"event time has ended, and windows still hold the records {sorted(held)[:10]}")
    for n, key, start, end, last in rows:
        numbers = [other for other, of, *_ in rows if of == key]
        whole = _session(stamp_of(n), sorted(map(stamp_of, numbers)))
        if (
            key != key_of(n)
            or (last and (start, end) != whole)
            or not whole[0] <= start <= stamp_of(n) < end <= whole[1]
        ):
            raise Violation("windows", f"record {n} of {key} came with the session {(start, end)}, which is {whole}")


def _session(stamp: int, stamps: Sequence[int]) -> tuple[int, int]:
    """Returns the session of a time: all times that are linked to it by gaps which are short enough."""
    start = end = stamp
    for other in reversed(stamps):
        start = other if start - GAP_MS <= other <= start else start
    for other in stamps:
        end = other if end <= other <= end + GAP_MS else end
    return start, end + GAP_MS
