"""Housekeeping follows the commits: one round at a time, and a committer that fails keeps no other from its turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.core.errors import StoreError, SyncFailed
from engine.core.paths import JobPaths
from engine.core.sinks import NothingToCommit, Tidied
from engine.jobmaster import events
from engine.jobmaster.actions import Note, RunOffLoop
from engine.jobmaster.housekeeping import TRIM_EVERY, Housekeeping
from engine.snapshot.epoch_log import EpochLog
from tests.fakes import MemoryStore


class Sink(NothingToCommit):
    def __init__(self, answer: Callable[[], Tidied]) -> None:
        self._answer = answer
        self.calls: list[tuple[int, int, int, float]] = []

    def tidy(self, generation: int, epoch: int, kept_from: int, now_ms: float) -> Tidied:
        self.calls.append((generation, epoch, kept_from, now_ms))
        return self._answer()


def failing(error: Exception) -> Callable[[], Tidied]:
    def fail() -> Tidied:
        raise error

    return fail


def housekeeping(**sinks: Sink) -> Housekeeping:
    return Housekeeping(EpochLog(MemoryStore(), JobPaths("job")), sinks, RunOffLoop)


def carried_out(action: RunOffLoop) -> list[Any]:
    """Runs the I/O of a round, and returns the events that it notes."""
    return [note.event for note in action.done(action.work(), None, 0.0) if isinstance(note, Note)]


def test_a_round_begins_after_a_commit_unless_one_is_under_way() -> None:
    sink = Sink(Tidied)
    house = housekeeping(out=sink)
    (first,) = house.after_commit(2, 10, 8, 5.0)
    assert isinstance(first, RunOffLoop) and house.after_commit(2, 11, 9, 6.0) == []
    assert carried_out(first) == [] and sink.calls == [(2, 10, 8, 5.0)]
    assert len(house.after_commit(2, 12, 10, 7.0)) == 1


def test_what_was_folded_is_noted_and_a_failure_too_and_the_others_have_their_turn() -> None:
    folded = Sink(lambda: Tidied(32, 1, 4711, 3))
    house = housekeeping(bad=Sink(failing(StoreError("no space left"))), good=folded)
    (action,) = house.after_commit(1, 10, 8, 0.0)
    assert isinstance(action, RunOffLoop)
    assert carried_out(action) == [
        events.NotTidied("bad", "StoreError: no space left"),
        events.Tidied("good", 32, 1, 4711, 3),
    ]


def test_a_failed_sync_is_not_hidden_because_it_is_unknown_then_what_is_durable() -> None:
    (action,) = housekeeping(out=Sink(failing(SyncFailed("fsync failed")))).after_commit(1, 10, 8, 0.0)
    assert isinstance(action, RunOffLoop)
    with pytest.raises(SyncFailed):
        action.work()


def test_the_epoch_log_is_trimmed_at_the_first_commit_and_then_now_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    monkeypatch.setattr(EpochLog, "trim", lambda self, kept_from: trims.append(kept_from))
    house = housekeeping()
    for epoch in range(5, 5 + 2 * TRIM_EVERY):
        (action,) = house.after_commit(1, epoch, epoch - 2, 0.0)
        assert isinstance(action, RunOffLoop)
        carried_out(action)
    assert trims == [3, 3 + TRIM_EVERY]


def test_a_round_that_failed_is_done_again_after_the_next_commit_with_its_trim(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    monkeypatch.setattr(EpochLog, "trim", lambda self, kept_from: trims.append(kept_from))
    house = housekeeping(out=Sink(Tidied))
    (action,) = house.after_commit(1, 10, 8, 0.0)
    assert isinstance(action, RunOffLoop) and action.done(None, StoreError("the store is away"), 0.0) == []
    for epoch in (11, 12):
        (action,) = house.after_commit(1, epoch, epoch - 2, 0.0)
        assert isinstance(action, RunOffLoop)
        carried_out(action)
    assert trims == [9]
