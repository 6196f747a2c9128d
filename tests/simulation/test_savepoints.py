"""200 simulated runs in which a person takes savepoints, stops and drains a job, each from one seed.

Topology: the jobs of test_simulation.py; a second job begins from a savepoint, in the same store under another name.
Faults: all of those, at the same time as the requests. Checks: everything in tests/simulation/invariants.py and
tests/simulation/savepoints.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.jobmaster.actions import Action, Note, Outcome, Send
from engine.jobmaster.master import JobMaster
from engine.jobmaster.publisher import Published
from engine.jobmaster.savepoints import Savepoints
from engine.protocol.checkpoint import PendingCheckpoint
from engine.protocol.coordinator import CheckpointCoordinator, PublishCheckpoint, StoreSavepoint
from engine.protocol.manifest import Manifest
from engine.protocol.messages import NotifyComplete
from engine.protocol.savepoint import Stopping
from engine.snapshot import beginning, garbage
from engine.snapshot.savepoints import SavepointFolder
from tests.simulation.planting import check_that_a_bug_is_caught
from tests.simulation.savepoints import run_savepoints

SEEDS = 200
CHUNK = 50


@pytest.mark.promise("D5", "D6", "D7", "D9")
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_savepoints_stops_and_drains_at_any_moment_lose_and_double_nothing(first: int) -> None:
    hits: set[str] = set()
    for seed in range(first, first + CHUNK):
        result = run_savepoints(seed)
        assert result.violation is None, f"seed {seed}: {result.violation}"
        hits |= result.hits
    for way in ("savepoint: completed", "savepoint: of a stop", "stop: behind a last epoch", "stop: drained"):
        assert way in hits
    assert {"stop: failed, and the job goes on", "begun: at another parallelism"} <= hits


# --- planted bugs ---

Patches = list[tuple[Any, str, Any]]


def _tells_the_sinks() -> Patches:
    """Sinks hear of a savepoint as if it were an epoch, and forget what they pre-committed."""
    complete = Savepoints._complete

    def telling(self: Savepoints, one: Any, head: Any, now_ms: float) -> list[Action]:
        master = self._tell.__self__  # type: ignore[attr-defined]
        done = NotifyComplete(one.attempt, one.checkpoint)
        return [*complete(self, one, head, now_ms), *(Send(slot.session, done) for slot in master.slots.assigned)]

    return [(Savepoints, "_complete", telling)]


def _is_an_epoch() -> Patches:
    """A savepoint is published like any other checkpoint, and then stored."""
    acknowledge = CheckpointCoordinator.on_acknowledge

    def publishing(self: CheckpointCoordinator, ack: Any, now_ms: float) -> Any:
        outcome, actions = acknowledge(self, ack, now_ms)
        stored = [one for one in actions if isinstance(one, StoreSavepoint) and not one.completed.stops]
        self._publishing.update({one.completed.checkpoint: one.completed for one in stored})
        return outcome, [*(PublishCheckpoint(one.completed) for one in stored), *actions]

    return [(CheckpointCoordinator, "on_acknowledge", publishing)]


def _is_subsumed() -> Patches:
    return [(PendingCheckpoint, "periodic", property(lambda self: self.stopping is Stopping.NO))]


def _ends_before_the_commit() -> Patches:
    """A stopped job ends when its epoch is published."""
    is_published = JobMaster._publication_is

    def hasty(self: JobMaster, outcome: Any, now_ms: float) -> list[Action]:
        actions = is_published(self, outcome, now_ms)
        stop = self._savepoints._stop
        if isinstance(outcome, Published) and stop is not None and outcome.manifest.checkpoint == stop.checkpoint:
            return actions + self._stop(Outcome.STOPPED, "hasty")
        return actions

    return [(JobMaster, "_publication_is", hasty)]


def _periodic_checkpoints_go_on() -> Patches:
    """A stop does not hold the periodic checkpoints: one of them may be newer, and may hold half of a drain."""

    def forgetful(self: CheckpointCoordinator) -> None:
        pass

    trigger = CheckpointCoordinator.trigger_stop

    def anyway(self: CheckpointCoordinator, request: Any, now_ms: float) -> Any:
        self._held = True
        decided = trigger(self, request, now_ms)
        self._held = False
        return decided

    return [(CheckpointCoordinator, "hold", forgetful), (CheckpointCoordinator, "trigger_stop", anyway)]


def _made_before_it_is_durable() -> Patches:
    """`savepoint.json` is made of files that are not synced."""
    prepare = SavepointFolder.prepare

    def hasty(self: SavepointFolder, manifest: Any, origin: Any) -> Any:
        class Lazy:
            def __init__(self, store: Any) -> None:
                self._store = store

            def sync(self, paths: list[str]) -> None: ...

            def __getattr__(self, name: str) -> Any:
                return getattr(self._store, name)

        return prepare(SavepointFolder(Lazy(self.store)), manifest, origin)

    return [(SavepointFolder, "prepare", hasty)]


def _begins_without_totals() -> Patches:
    """The ledger of the new job begins at zero, although its state does not."""
    as_forked = beginning.as_forked

    def forgetful(target: Manifest, name: str, inputs: dict[str, str]) -> Manifest:
        return msgspec.structs.replace(as_forked(target, name, inputs), ledger={})

    return [(beginning, "as_forked", forgetful)]


def _forgets_a_failure() -> Patches:
    """A savepoint that could not be written is never settled."""
    fail = Savepoints._fail

    def silent(self: Savepoints, one: Any, why: str) -> list[Action]:
        return [action for action in fail(self, one, why) if not isinstance(action, Note)]

    return [(Savepoints, "_fail", silent)]


def _settles_its_own() -> Patches:
    """A JobMaster takes its own savepoints for those of JobMasters before it, and completes or deletes them."""
    left_by_writers = garbage._left_by_writers

    def of_all(job_id: str, before: int, files: Any) -> Any:
        return left_by_writers(job_id, before + 1, files)

    return [(garbage, "_left_by_writers", of_all)]


BUGS: dict[str, tuple[Callable[[], Patches], tuple[str, ...], int]] = {
    "a savepoint tells the sinks": (_tells_the_sinks, ("ledger", "no_loss"), 33),
    "a savepoint is an epoch": (_is_an_epoch, ("savepoint", "durable"), 11),
    "a savepoint is subsumed": (_is_subsumed, ("savepoint",), 20),
    "a stopped job ends before the commit": (_ends_before_the_commit, ("stop", "savepoint"), 10),
    "periodic checkpoints go on during a stop": (_periodic_checkpoints_go_on, ("drain", "savepoint", "stop"), 10),
    "a savepoint is made before it is durable": (_made_before_it_is_durable, ("savepoint",), 17),
    "a JobMaster settles its own savepoints": (_settles_its_own, ("savepoint",), 11),
    "a failed savepoint is not told": (_forgets_a_failure, ("savepoint",), 0),
    "a job begins without the totals of its savepoint": (_begins_without_totals, ("ledger",), 11),
}
"""Each bug with the invariants that may catch it, and the first seed that does."""


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_a_bug_is_caught(name, BUGS[name], run_savepoints, SEEDS, monkeypatch)
