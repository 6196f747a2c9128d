"""Planted bugs of rescaling: each breaks a real module as a plausible mistake would.

`python -m tests.simulation.rescale_bugs` searches the first seed that catches each bug; they are recorded below.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import engine.jobmaster.rescaling as rescaling_module
import engine.runtime.slot as slot_module
from engine.graph.scalable import SlotPlans
from engine.jobmaster.actions import Action, ReleaseSlots
from engine.jobmaster.rescaling import RescalePhase, Rescaler
from engine.jobmaster.slot_keeper import SlotKeeper
from engine.protocol.state_proof import Proof
from engine.snapshot.restore import Restored
from tests.simulation.bugs import Patches, PlantedBug
from tests.simulation.rescales import run_rescales
from tests.simulation.world import Violation


def _not_durable() -> Patches:
    io: Any = Rescaler.io

    def unsaved(self: Rescaler) -> Any:
        return (lambda: None) if self._read and io.fget(self) is not None else io.fget(self)

    return [(Rescaler, "io", property(unsaved))]


def _restore_loses_a_row() -> Patches:
    """What is left of a file after other subtasks took their key groups is read from its second row on."""
    restore = slot_module.restore

    def losing(log: Any, ref: Any, wanted: Any) -> Restored:
        restored = restore(log, ref, wanted)
        written = Counter(state.subtask.vertex for state in log.read_manifest(ref).subtasks)
        for (subtask, _), tables in restored.tables.items():
            parallelism = next(want.parallelism for want in wanted if want.subtask == subtask)
            if parallelism != (written[subtask.vertex] or parallelism):
                tables[0] = (tables[0][0], tables[0][1].slice(1))
        return restored

    return [(slot_module, "restore", losing)]


def _digests_not_compared() -> Patches:
    return [*_restore_loses_a_row(), (rescaling_module, "prove", lambda *of: Proof("", "", 0))]


def _released_slot_stays_in_the_pool() -> Patches:
    """Spark is told that a slot is not needed; the slot is not, and fills the next gap."""

    def release_surplus(self: SlotKeeper) -> list[Action]:
        numbers, gone = self._pool.release_surplus()
        for slot in gone:
            self._pool.add(slot)
        return [ReleaseSlots(tuple(numbers))] if numbers else []

    return [(SlotKeeper, "release_surplus", release_surplus)]


def _failed_switch_goes_back() -> Patches:
    """A slot that dies while the job switches takes it back to the old parallelism, which is not durable any more."""
    over = Rescaler.on_attempt_over

    def on_attempt_over(self: Rescaler, why: str) -> Any:
        rescale = self.current
        if rescale is not None and rescale.phase is RescalePhase.SWITCHING:
            self._deploy_at(rescale.before)
            return self.fail(why)
        return over(self, why)

    return [(Rescaler, "on_attempt_over", on_attempt_over)]


def _as_started_not_as_saved() -> Patches:
    """A JobMaster goes on at the parallelism that it was started with."""
    on_io = Rescaler.on_io
    return [(Rescaler, "on_io", lambda self, read, error: on_io(self, read if self._read else None, error))]


def _slots_plan_as_started() -> Patches:
    """A slot makes its plans at the parallelism that the job was started with, and compares no fingerprint."""

    def plan(self: SlotPlans, deploy: Any) -> Any:
        return make(self, type(deploy)(deploy.attempt, deploy.slot, deploy.addresses, None, "", plan=_started(self)))

    def _started(plans: SlotPlans) -> str:
        return plans.job.at(slot_module.Deploy.__struct_defaults__[0]).fingerprint

    make = SlotPlans.__call__
    return [(SlotPlans, "__call__", plan)]


def _digests_of_one_subtask_only() -> Patches:
    """The acknowledgement of a subtask replaces that of another."""
    acknowledged = Rescaler.on_acknowledged

    def forgetful(self: Rescaler, ack: Any) -> None:
        acknowledged(self, ack)
        rescale = self.current
        if rescale is not None and rescale.phase is RescalePhase.CHECKPOINT:
            rescale.digests = dict(list(rescale.digests.items())[-1:])

    return [(Rescaler, "on_acknowledged", forgetful)]


RESCALE_BUGS = [
    PlantedBug("the new parallelism is not durable", _not_durable, ("rescale_durable",), 5),
    PlantedBug("a restore at another parallelism loses a row", _restore_loses_a_row, ("state_proof",), 5),
    PlantedBug(
        "digests are not compared",
        _digests_not_compared,
        ("no_loss", "state", "exact_result", "ledger", "internal_error"),
        7,
    ),
    PlantedBug("a released slot is still assigned", _released_slot_stays_in_the_pool, ("released", "finishes"), 33),
    PlantedBug("a failed switch goes back to the old parallelism", _failed_switch_goes_back, ("rescale_durable",), 22),
    PlantedBug("a JobMaster begins as started, not as saved", _as_started_not_as_saved, ("rescale_durable",), 170),
    PlantedBug("slots plan as the job was started", _slots_plan_as_started, ("internal_error", "finishes"), 0),
    PlantedBug("the digests of most subtasks are forgotten", _digests_of_one_subtask_only, ("state_proof",), 5),
]


@contextmanager
def planted(bug: PlantedBug) -> Iterator[None]:
    with ExitStack() as stack:
        for target, attribute, replacement in bug.patches():
            stack.enter_context(patch.object(target, attribute, replacement))
        yield


def caught(bug: PlantedBug, seed: int) -> Violation | None:
    """Returns the violation that the bug causes with this seed, if it is one of those that must catch it."""
    with planted(bug):
        violation = run_rescales(seed).violation
    return violation if violation is not None and violation.invariant in bug.invariants else None


def search(bug: PlantedBug, seeds: Sequence[int]) -> int | None:
    return next((seed for seed in seeds if caught(bug, seed) and run_rescales(seed).violation is None), None)


def main() -> int:
    wanted = sys.argv[1:]
    for bug in RESCALE_BUGS:
        if not wanted or any(word in bug.name for word in wanted):
            print(f"{bug.name}: seed {search(bug, range(2000))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
