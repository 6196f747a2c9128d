"""Counts which transitions of the protocol the seeds took. A transition that no seed takes is an error: either it can't
happen, and the code for it should go, or the simulator is too tame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from engine.protocol.alignment.aligner import BarrierAligner, BarrierOutcome, Superseded
from engine.protocol.alignment.tracked import TrackedBarriers
from engine.protocol.failures import AckOutcome, AttemptFailure, CheckpointFailure
from tests.simulation.cluster import CREDIT
from tests.simulation.drifting import WAITED
from tests.simulation.faults import BLOWS, RARE_BLOWS
from tests.simulation.jobs import EXCHANGES, OPERATOR_STATE, PATTERN, SESSIONS
from tests.simulation.ports import FRAME_LOST, FRAME_TWICE, SILENT_PEER, SWALLOWED
from tests.simulation.store import EXISTS_OURS, NAME_FORGOTTEN, PARTIAL_LIST


class WatchedAligner:
    """Wraps a real aligner and records what it decided."""

    def __init__(self, aligner: BarrierAligner, channels: int, hits: set[str]) -> None:
        self._aligner = aligner
        self._channels = channels
        self._hits = hits

    def blocked(self, channel: int) -> bool:
        return self._aligner.blocked(channel)

    def on_barrier(self, channel: int, checkpoint: int, now_ms: float) -> list[BarrierOutcome]:
        aligner: Any = self._aligner
        over = checkpoint <= aligner._closed or checkpoint in aligner._aborted
        outcomes = self._aligner.on_barrier(channel, checkpoint, now_ms)
        if over:
            self._hits.add("aligner: a barrier of a checkpoint that is over")
        for outcome in outcomes:
            if isinstance(outcome, Superseded):
                self._hits.add("aligner: superseded")
            elif isinstance(self._aligner, TrackedBarriers):
                self._hits.add("aligner: counted")
            else:
                self._hits.add("aligner: aligned" if self._channels > 1 else "aligner: aligned at once, one channel")
        return outcomes

    def on_abort(self, checkpoint: int) -> None:
        if getattr(self._aligner, "_current", None) == checkpoint:
            self._hits.add("aligner: an aborted checkpoint is let go")
        self._aligner.on_abort(checkpoint)


GUARDS = {
    f"checkpoint: {CheckpointFailure.LEDGER_MISMATCH.code}": "only a bug breaks the equations; planted bugs do",
    f"acknowledge: {AckOutcome.UNKNOWN.value}": "the JobMaster refuses other attempts before the coordinator sees them",
    f"attempt: {AttemptFailure.UNFIT.code}": "the records of simulated jobs always fit",
    "outcome: FAILED": "only a fenced JobMaster may fail; any other failure is a violation",
}
"""Transitions that no seed has to take, with the reason."""

PHASES = (
    "STANDBY → FENCING",
    "FENCING → RESTORING",
    "FENCING → STOPPED",
    "RESTORING → WAITING",
    "RESTORING → DEPLOYING",
    "RESTORING → RESTARTING",
    "WAITING → DEPLOYING",
    "WAITING → STOPPED",
    "DEPLOYING → RUNNING",
    "DEPLOYING → RESTARTING",
    "DEPLOYING → STOPPED",
    "RUNNING → RESTARTING",
    "RUNNING → STOPPED",
    "RESTARTING → RESTORING",
    "RESTARTING → STOPPED",
    "RESTORING → STOPPED",
)

EXPECTED = (
    *(f"phase: {phase}" for phase in PHASES),
    *(f"outcome: {outcome}" for outcome in ("FINISHED", "STOPPED", "FENCED", "CANCELLED")),
    "checkpoint: completed",
    "checkpoint: completed, final",
    *(f"checkpoint: {failure.code}" for failure in CheckpointFailure),
    *(f"acknowledge: {outcome.value}" for outcome in AckOutcome if outcome is not AckOutcome.SUCCESS),
    *(f"attempt: {failure.code}" for failure in AttemptFailure),
    *(f"note: {kind}" for kind in ("claimed", "claim_lost", "claim_failed", "published", "publish_unknown")),
    "log: Fenced",
    "aligner: aligned",
    "aligner: aligned at once, one channel",
    "aligner: superseded",
    "aligner: an aborted checkpoint is let go",
    "aligner: a barrier of a checkpoint that is over",
    "aligner: counted",
    "slot: its lease ended",
    "slot: asked again to deploy",
    *(
        f"slot: refuses {name} of another attempt"
        for name in ("Deploy", "Start", "Trigger", "NotifyComplete", "NotifyAbort", "WatermarkLimits")
    ),
    "slot: refuses a frame of another attempt",
    "master: kills a silent slot",
    "master: kills a hung slot",
    "note: slow_step",
    "note: slot_killed",
    "note: slot_refused",
    "commit: the committer raises",
    CREDIT,
    "channel: broken",
    FRAME_LOST,
    FRAME_TWICE,
    SWALLOWED,
    SILENT_PEER,
    "control: a message is lost, the stream breaks",
    "control: a message is repeated",
    "crash: in the middle of a step",
    *(f"store: create {outcome}" for outcome in ("CREATED", "EXISTS")),
    *(f"store: create UNKNOWN, {fate}" for fate in ("applied", "not applied", "applied late")),
    *(f"store: an unsynced file {fate}" for fate in ("survives", "is torn", "is lost")),
    *(f"store: {call} fails" for call in ("write", "sync", "create", "read", "list", "delete")),
    "store: a failed fsync ends the process",
    "store: an empty one takes its place",
    EXISTS_OURS,
    PARTIAL_LIST,
    NAME_FORGOTTEN,
    *(f"fault: {blow}" for blow in (*BLOWS, *(blow for blow, _ in RARE_BLOWS))),
    *(f"exchange: {name}" for name in (*EXCHANGES, "own slots")),
    *(f"operator state: {kind}" for kind in OPERATOR_STATE),
    "timers: two keyed inputs",
    "join: two keyed inputs",
    *(f"state: {kind}" for kind in (SESSIONS, PATTERN)),
    WAITED,
    "standby: started",
    "standby: takes over with all of its slots",
    "standby: takes over before its slots came",
    "source: a folder that fills",
    "source: another consumer before event time",
    "table: readers see a folded file",
    "table: a replaced file is deleted",
    "table: an old record is deleted",
    "log: an old record is deleted",
    "gc: a checkpoint that no epoch needs",
)


SEEDS = (
    9,
    463,
    295,
    899,
    91,
    84,
    187,
    88,
    110,
    244,
    39,
    111,
    41,
    57,
    90,
    113,
    144,
    185,
    5,
    12,
    24,
    26,
    50,
    59,
    63,
    79,
    118,
    156,
    257,
    350,
    982,
    20,
    49,
    67,
    297,
    655,
    851,
    37,
    40,
    132,
    327,
    386,
)
"""Seeds that take every transition together. Others are run only if these no longer do."""


def count(hits: Iterable[Iterable[str]]) -> Counter[str]:
    return Counter(name for of_seed in hits for name in set(of_seed))


def missed(counts: Mapping[str, int]) -> list[str]:
    return [name for name in EXPECTED if not counts.get(name) and name not in GUARDS]


def unexpected(counts: Mapping[str, int]) -> list[str]:
    """Returns transitions that are not in the table; add a new one there."""
    known = {*EXPECTED, *GUARDS}
    groups = {name.split(":")[0] for name in EXPECTED} - {"note"}
    return sorted(name for name in counts if name not in known and name.split(":")[0] in groups)


def table(counts: Mapping[str, int], seeds: int) -> str:
    lines = [f"{'seeds':>7}  transition ({seeds} seeds)"]
    for name in EXPECTED:
        note = f"   ({GUARDS[name]})" if name in GUARDS else "" if counts.get(name) else "   <- never"
        lines.append(f"{counts.get(name, 0):>7}  {name}{note}")
    lines += [f"{counts[name]:>7}  {name}   <- not in the table" for name in unexpected(counts)]
    return "\n".join(lines)
