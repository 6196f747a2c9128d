"""Runs a job three ways that must have the same output: undisturbed; wider, with checkpoints; crashed and rescaled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.api import FixedDelay, StreamEnvironment
from engine.testing import Checkpoint, Crash, Item, ListSource, LocalRun, run

Rows = list[dict[str, Any]]
Define = Callable[..., None]
"""Defines a job behind its environment and one source per list of records."""


def three_ways(define: Define, *inputs: Sequence[Item], tables: Sequence[str] = ("out",)) -> dict[str, Rows]:
    """Returns the rows of each table, sorted, after checking that all three runs wrote the same."""
    plain = run(_job(define, inputs), parallelism=1)
    checked = run(_job(define, [_with(items, Checkpoint) for items in inputs]), parallelism=2)
    assert checked.epochs > 1
    story = [_with(items, Checkpoint, Crash) for items in inputs]
    first = run(_job(define, story), parallelism=2, until=lambda so_far: so_far.epochs == 1)
    last = run(_job(define, story), parallelism=3, after=first)
    assert last.restarts >= 1, "no crash happened behind the restore"
    results = [{table: _sorted(result, table) for table in tables} for result in (plain, checked, last)]
    assert results[0] == results[1], "parallelism 2 with checkpoints differs"
    assert results[0] == results[2], "crashed and restored at parallelism 3 differs"
    return results[0]


def _job(define: Define, inputs: Sequence[Sequence[Item]]) -> Callable[[StreamEnvironment], None]:
    sources = [ListSource(items) for items in inputs]

    def job(env: StreamEnvironment) -> None:
        env.set_restart_strategy(FixedDelay(attempts=20, delay_ms=5))
        define(env, *sources)

    return job


def _with(items: Sequence[Item], *faults: type[Any]) -> list[Item]:
    """Puts a checkpoint after a third of the records and a fault, if there is one, after two thirds."""
    third = len(items) // 3
    last = [faults[1]()] if len(faults) > 1 else [faults[0]()]
    return [*items[:third], faults[0](), *items[third : 2 * third], *last, *items[2 * third :]]


def _sorted(result: LocalRun, table: str) -> Rows:
    return sorted(result.rows(table), key=repr)
