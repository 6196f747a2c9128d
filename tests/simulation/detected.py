"""The job of the kind "pattern": each record of a key with the one directly before it in event time.

Every record but the first of its key completes one match and begins the next, so each match needs the state of the last
one. The oracle sorts the records of each key that are no longer waiting, and pairs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from engine.api import CEP, DataStream, Match, Pattern
from engine.connectors.table import TableSink
from engine.core.functions import Row
from engine.state.partial_matches import WAITING
from tests.simulation.world import Violation

Rows = list[tuple[Any, ...]]


def _pair(match: Match) -> Row:
    (before,), (after,) = match["before"], match["after"]
    return {"n": after["n"], "key": after["key"], "before": before["n"]}


def define(stamped: DataStream, out: TableSink) -> None:
    pattern = Pattern.begin("before").next("after")
    ordered = CEP.pattern(stamped.key_by("key"), pattern, lambda left, right: int(left["n"] - right["n"]))
    ordered.select(_pair, uid="pairs", schema="n long, key string, before long").sink_to(out, uid="out")


def check(
    rows: Rows,
    waiting: dict[str, list[int]],
    due: Sequence[int],
    key_of: Callable[[int], str],
    stamp_of: Callable[[int], int],
) -> None:
    """Checks the published pairs together with the records that the snapshot says are still waiting."""
    held = waiting.get(WAITING, [])
    if len(set(held)) < len(held) or not set(held) <= set(due):
        raise Violation("no_duplicate", f"the records {sorted(held)} wait, of {len(due)} that were read")
    taken = sorted(set(due) - set(held), key=lambda n: (stamp_of(n), n))
    want = set()
    for key in {key_of(n) for n in taken}:
        want |= {(after, key, before) for before, after in pairwise([n for n in taken if key_of(n) == key])}
    if len(set(rows)) < len(rows):
        raise Violation("no_duplicate", f"{len(rows) - len(set(rows))} pairs are published twice")
    if lost := want - set(rows):
        raise Violation("no_loss", f"the pairs {sorted(lost)[:5]} are missing ({len(lost)})")
    if more := set(rows) - want:
        raise Violation("no_phantom", f"the pairs {sorted(more)[:5]} are none ({len(more)})")


def check_final(waiting: dict[str, list[int]]) -> None:
    if waiting.get(WAITING):
        raise Violation("no_loss", f"event time has ended, and {sorted(waiting[WAITING])[:10]} still wait")
