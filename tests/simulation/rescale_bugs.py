"""Planted bugs of rescaling: each breaks a real module as a plausible mistake would.

`python -m tests.simulation.rescale_bugs` searches the first seed that catches each bug; they are recorded below.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

import engine.jobmaster.rescaling as rescaling_module
import engine.runtime.slot as slot_module
from engine.core.errors import Fenced, StoreError
from engine.graph.scalable import SlotPlans
from engine.jobmaster.actions import Action, ReleaseSlots
from engine.jobmaster.master import JobMaster
from engine.jobmaster.rescaling import RescalePhase, Rescaler, Verdict
from engine.jobmaster.slot_keeper import SlotKeeper
from engine.protocol.state_proof import Proof
from tests.simulation.bugs import Patches, PlantedBug
from tests.simulation.rescales import losing_a_row, run_failing_proofs, run_rescales
from tests.simulation.simulation import Result
from tests.simulation.world import Violation


def _not_durable() -> Patches:
    return [(Rescaler, "save", property(lambda self: lambda: None))]


def _saved_before_it_is_proved() -> Patches:
    """The new parallelism is durable when the job leaves the old one; the proof comes afterwards."""
    on_committed = Rescaler.on_committed

    def early(self: Rescaler, *of: Any) -> list[Action]:
        actions = on_committed(self, *of)
        if actions:
            assert self._scale is not None and self.current is not None
            with suppress(StoreError, Fenced):
                self._scale.save(self.current.after.scaling)
        return actions

    return [(Rescaler, "on_committed", early)]


def _failed_proof_is_saved() -> Patches:
    """The outcome of the proof is noted in the wrong order: what differs is saved, too, and starts."""
    on_deployed = Rescaler.on_deployed

    def lenient(self: Rescaler, answers: Any) -> Verdict:
        verdict = on_deployed(self, answers)
        if verdict is Verdict.GO_BACK and self.current is not None:
            self.current.phase = RescalePhase.SAVING
            return Verdict.SAVE
        return verdict

    return [(Rescaler, "on_deployed", lenient)]


def _starts_before_it_is_saved() -> Patches:
    """The attempt starts as soon as it is proved; the save goes on beside it."""
    deployed = JobMaster._start_if_deployed

    def hasty(self: JobMaster, current: Any, now_ms: float) -> list[Action]:
        actions = deployed(self, current, now_ms)
        return actions + (self._start(current) if self._rescaler.saving and not current.started else [])

    def start(self: JobMaster, current: Any) -> list[Action]:
        return [] if current.started else start_once(self, current)

    start_once = JobMaster._start
    return [(JobMaster, "_start_if_deployed", hasty), (JobMaster, "_start", start)]


def _restored_while_it_is_saved() -> Patches:
    """A slot dies while the new parallelism is being saved, and the job is restored before that is decided."""
    return [(Rescaler, "saving", property(lambda self: False)), (Rescaler, "save", Rescaler.save)]


def _restore_loses_a_row() -> Patches:
    return [(slot_module, "restore", losing_a_row())]


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


def _failed_switch_stays() -> Patches:
    """A slot that dies while the job switches leaves it at the new parallelism, which is not durable yet."""
    over = Rescaler.on_attempt_over

    def on_attempt_over(self: Rescaler, why: str) -> Any:
        rescale, now = self.current, self.now
        actions = over(self, why)
        if rescale is not None and rescale.phase is RescalePhase.SWITCHING:
            self._deploy_at(now)
        return actions

    return [(Rescaler, "on_attempt_over", on_attempt_over)]


def _as_started_not_as_saved() -> Patches:
    """A JobMaster goes on at the parallelism that it was started with."""
    on_read = Rescaler.on_read
    return [(Rescaler, "on_read", lambda self, read: on_read(self, None))]


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
    PlantedBug("the new parallelism is not durable", _not_durable, ("rescale_durable",), 16),
    PlantedBug("a restore at another parallelism loses a row", _restore_loses_a_row, ("state_proof",), 16),
    PlantedBug(
        "digests are not compared",
        _digests_not_compared,
        ("no_loss", "state", "exact_result", "ledger", "internal_error"),
        16,
    ),
    PlantedBug("a released slot is still assigned", _released_slot_stays_in_the_pool, ("released", "finishes"), 21),
    PlantedBug("a failed switch stays at the new parallelism", _failed_switch_stays, ("rescale_durable",), 5),
    PlantedBug("the new parallelism is saved before its proof", _saved_before_it_is_proved, ("rescale_proved",), 126),
    PlantedBug("a job starts before its parallelism is durable", _starts_before_it_is_saved, ("rescale_durable",), 7),
    PlantedBug(
        "a job is restored while its parallelism is being saved",
        _restored_while_it_is_saved,
        ("rescale_durable", "rescale_proved", "internal_error"),
        7,
    ),
    PlantedBug("a JobMaster begins as started, not as saved", _as_started_not_as_saved, ("rescale_durable",), 64),
    PlantedBug("slots plan as the job was started", _slots_plan_as_started, ("internal_error", "finishes"), 136),
    PlantedBug("the digests of most subtasks are forgotten", _digests_of_one_subtask_only, ("state_proof",), 21),
]


PROOF_BUGS = [
    PlantedBug("the new parallelism is saved before its proof", _saved_before_it_is_proved, ("rescale_proved",), 7),
    PlantedBug("what differs is saved, too", _failed_proof_is_saved, ("rescale_proved",), 5),
]
"""Bugs that a failing proof has to show."""


@contextmanager
def planted(bug: PlantedBug) -> Iterator[None]:
    with ExitStack() as stack:
        for target, attribute, replacement in bug.patches():
            stack.enter_context(patch.object(target, attribute, replacement))
        yield


def caught(bug: PlantedBug, seed: int, run: Callable[[int], Result] = run_rescales) -> Violation | None:
    """Returns the violation that the bug causes with this seed, if it is one of those that must catch it."""
    with planted(bug):
        violation = run(seed).violation
    return violation if violation is not None and violation.invariant in bug.invariants else None


def search(bug: PlantedBug, seeds: Sequence[int], run: Callable[[int], Result] = run_rescales) -> int | None:
    return next((seed for seed in seeds if caught(bug, seed, run) and run(seed).violation is None), None)


def main() -> int:
    wanted = sys.argv[1:]
    for run, bugs in ((run_rescales, RESCALE_BUGS), (run_failing_proofs, PROOF_BUGS)):
        for bug in bugs:
            if not wanted or any(word in bug.name for word in wanted):
                print(f"{bug.name} ({run.__name__}): seed {search(bug, range(2000), run)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
