"""`Gatekeeper` has the gates of a job's sinks decide on an epoch's rows before it is published.

The Publisher hands over the manifest of one complete checkpoint at a time. Each sink with a gate and with rows in it is
asked about. A gate that fails is asked again until its time is over; then its policy decides. A held epoch waits for a
person.

Invariants: only the answer to the open question counts; late, repeated and foreign ones change nothing. An answer that
evaluated no expectation, or saw another number of rows than the sink wrote, is a failure of the gate and no verdict.
The epoch is ruled on once, when every sink is decided. What is dropped is never decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from engine.core.gates import Gate
from engine.jobmaster import events
from engine.jobmaster.actions import Action, AskGate, EndGate, Note
from engine.protocol.gate import (
    Decision,
    Expected,
    GateAnswer,
    GateQuestion,
    GateVerdict,
    OnFail,
    OnTimeout,
    Ruling,
)
from engine.protocol.manifest import Committable, Manifest

LONGEST_RETRY_MS = 5_000.0


class HeldEpoch(msgspec.Struct, frozen=True):
    """A sink whose rows wait for a person, with all of their epoch. `refused` is 0 if the gate said nothing in time."""

    checkpoint: int
    epoch: int
    sink: str
    gate: str
    why: str
    rows: int
    refused: int
    since_ms: int


@dataclass(frozen=True)
class Ruled:
    """Every gated sink is decided. `refused_rows`: for a dead letter, the rows by file; None: all rows."""

    verdicts: list[GateVerdict]
    refused_rows: Mapping[str, Mapping[str, list[int]] | None]


@dataclass(frozen=True)
class Stopped:
    """A gate whose policy is to stop has refused the epoch, or has said nothing in time."""

    why: str


GateOutcome = Ruled | Stopped
Tell = Callable[[GateOutcome, float], list[Action]]


@dataclass
class _Case:
    """One sink of the epoch. `number`: that of the open question. `retry_at_ms`: it is asked again then.

    `by_person`: a person had the gate asked again. If it says nothing then, the epoch is held again, whatever its
    policy is: the gate may have refused the rows before.
    """

    sink: str
    gate: Gate
    files: list[str]
    rows: int
    deadline_ms: float = 0.0
    number: int | None = None
    retry_at_ms: float | None = None
    tries: int = 0
    by_person: bool = False
    error: str = ""
    answer: GateAnswer | None = None
    held: HeldEpoch | None = None
    decision: Decision | None = None
    why: str = ""

    @property
    def waits(self) -> bool:
        """True while the gate may still answer in time."""
        return self.decision is None and self.held is None

    def verdict(self) -> GateVerdict:
        assert self.decision is not None
        answer = self.answer or GateAnswer(0)
        return GateVerdict(
            self.sink,
            self.gate.asks,
            self.decision,
            self.rows,
            answer.refused,
            expectations=answer.expectations,
            took_ms=answer.took_ms,
            why=self.why,
        )


@dataclass
class _Trial:
    """The epoch that is judged now."""

    checkpoint: int
    epoch: int
    cases: dict[str, _Case] = field(default_factory=dict)


class Gatekeeper:
    """`tell` brings the outcome to the Publisher and returns what it decides."""

    def __init__(self, gates: Mapping[str, Gate], wall_ms: Callable[[], int], retry_ms: float, tell: Tell) -> None:
        self._gates = dict(gates)
        self._wall_ms = wall_ms
        self._retry_ms = retry_ms
        self._tell = tell
        self._trial: _Trial | None = None
        self._questions = 0

    @property
    def held(self) -> list[HeldEpoch]:
        return [case.held for case in self._cases if case.held is not None]

    @property
    def wakeup_ms(self) -> float | None:
        times = [
            case.deadline_ms if case.retry_at_ms is None else min(case.retry_at_ms, case.deadline_ms)
            for case in self._cases
            if case.waits
        ]
        return min(times, default=None)

    @property
    def _cases(self) -> list[_Case]:
        return list(self._trial.cases.values()) if self._trial is not None else []

    # ------------------------------------------------------------------ ask

    def judge(self, manifest: Manifest, now_ms: float) -> list[Action]:
        """Asks every gate that has rows in this epoch."""
        assert self._trial is None, "one epoch is judged at a time"
        self._trial = trial = _Trial(manifest.checkpoint, manifest.epoch)
        actions: list[Action] = []
        for sink, gate in self._gates.items():
            commits = [one for one in manifest.commits if one.uid == sink]
            if commits:
                files = [one.payload["path"] for one in commits]
                trial.cases[sink] = _Case(sink, gate, files, sum(map(_rows_of, commits)))
                actions += self._begin(trial.cases[sink], now_ms)
        return actions + self._conclude(now_ms)

    def drop(self) -> None:
        """Forgets the epoch: it will not be published. What gates still say about it is late."""
        self._trial = None

    def _begin(self, case: _Case, now_ms: float) -> list[Action]:
        case.deadline_ms = now_ms + case.gate.timeout_ms
        case.tries, case.held, case.answer, case.error = 0, None, None, ""
        return self._ask(case)

    def _ask(self, case: _Case) -> list[Action]:
        assert self._trial is not None
        self._questions += 1
        case.number, case.retry_at_ms = self._questions, None
        gate = case.gate
        checkpoint, epoch = self._trial.checkpoint, self._trial.epoch
        return [AskGate(GateQuestion(self._questions, case.sink, gate.kind, gate.asks, case.files, checkpoint, epoch))]

    def on_tick(self, now_ms: float) -> list[Action]:
        actions: list[Action] = []
        for case in self._cases:
            if not case.waits:
                continue
            if now_ms >= case.deadline_ms:
                actions += self._timed_out(case, now_ms)
            elif case.retry_at_ms is not None and now_ms >= case.retry_at_ms:
                actions += self._ask(case)
        return actions

    # ------------------------------------------------------------------ answers

    def on_answer(self, answer: GateAnswer, now_ms: float) -> list[Action]:
        case = next((case for case in self._cases if case.waits and case.number == answer.number), None)
        if case is None:
            return [Note(events.GateAnswerIgnored(answer.number))]
        case.number = None
        error = answer.error or _no_verdict(answer, case.rows)
        if error:
            case.tries += 1
            case.error = error
            case.retry_at_ms = now_ms + min(self._retry_ms * 2**case.tries, LONGEST_RETRY_MS)
            return [Note(events.GateFailed(case.sink, error))]
        case.answer = answer
        if answer.passed:
            case.decision = Decision.PASSED
            return self._conclude(now_ms)
        failed = "; ".join(f"{one.name}: {one.detail}" if one.detail else one.name for one in _failed(answer))
        case.why = f"{answer.refused} of {case.rows} rows are refused by {failed}"
        match case.gate.on_fail:
            case OnFail.HOLD:
                return self._hold(case, answer.refused)
            case OnFail.STOP:
                return self._stop(case, now_ms)
            case OnFail.DEAD_LETTER:
                return self._decide(case, Decision.DEAD_LETTER, now_ms)

    def _timed_out(self, case: _Case, now_ms: float) -> list[Action]:
        """Ends the gate's process: it hangs, or is too slow, and the next question needs one that answers."""
        said = f": {case.error}" if case.error else ""
        case.why = f"the gate gave no verdict in {case.gate.timeout_ms / 1000:g} s{said}"
        case.number, case.retry_at_ms = None, None
        ended: list[Action] = [EndGate(f"sink {case.sink!r}: {case.why}")]
        match OnTimeout.HOLD if case.by_person else case.gate.on_timeout:
            case OnTimeout.HOLD:
                return ended + self._hold(case, 0)
            case OnTimeout.STOP:
                return ended + self._stop(case, now_ms)
            case OnTimeout.PASS:
                return ended + self._decide(case, Decision.UNJUDGED, now_ms)

    def _hold(self, case: _Case, refused: int) -> list[Action]:
        trial = self._trial
        assert trial is not None
        case.held = HeldEpoch(
            trial.checkpoint, trial.epoch, case.sink, case.gate.asks, case.why, case.rows, refused, self._wall_ms()
        )
        return [
            Note(
                events.EpochHeld(trial.checkpoint, trial.epoch, case.sink, case.gate.asks, case.why, case.rows, refused)
            )
        ]

    def _stop(self, case: _Case, now_ms: float) -> list[Action]:
        trial = self._trial
        assert trial is not None
        self.drop()
        why = (
            f"the gate {case.gate.asks!r} of sink {case.sink!r} stops the job before epoch {trial.epoch} (checkpoint "
            f"{trial.checkpoint}): {case.why}. Nothing of the epoch is published. Mend the job, its input or the gate, "
            "and start it again: it goes on from the last epoch and makes these rows again"
        )
        return self._tell(Stopped(why), now_ms)

    def _decide(self, case: _Case, decision: Decision, now_ms: float) -> list[Action]:
        trial = self._trial
        assert trial is not None
        case.decision, case.held = decision, None
        refused = case.answer.refused if case.answer is not None else 0
        event = events.GateRuled(trial.checkpoint, trial.epoch, case.sink, decision.value, case.rows, refused, case.why)
        return [Note(event), *self._conclude(now_ms)]

    def _conclude(self, now_ms: float) -> list[Action]:
        """Rules on the epoch once every sink is decided."""
        trial = self._trial
        if trial is None or any(case.decision is None for case in trial.cases.values()):
            return []
        self.drop()
        withheld: dict[str, Mapping[str, list[int]] | None] = {}
        for case in trial.cases.values():
            if case.decision is Decision.DISCARDED:
                withheld[case.sink] = None
            elif case.decision is Decision.DEAD_LETTER:
                assert case.answer is not None
                named = sum(map(len, case.answer.refused_rows.values()))
                withheld[case.sink] = case.answer.refused_rows if named == case.answer.refused < case.rows else None
        return self._tell(Ruled([case.verdict() for case in trial.cases.values()], withheld), now_ms)

    # ------------------------------------------------------------------ a person

    def rule(self, checkpoint: int, ruling: Ruling, now_ms: float) -> tuple[str, list[Action]]:
        """Carries out what a person decides about the held epoch of this checkpoint. Returns why not, if it can't.

        It is about all that is held of the epoch, so it waits until no gate is asked any more: a person who has looked
        at one sink must not release another one, whose gate speaks a moment later.
        """
        trial = self._trial
        held = [case for case in self._cases if case.held is not None]
        if trial is None or not held:
            return "no epoch is held now: weir gate shows what a gate holds", []
        if trial.checkpoint != checkpoint:
            return f"checkpoint {checkpoint} is not held: it is checkpoint {trial.checkpoint} now. Look at it first", []
        if any(case.waits for case in trial.cases.values()):
            return "another gate is still asked about this epoch: look at it again in a moment", []
        actions: list[Action] = []
        for case in held:
            if ruling is Ruling.RETRY:
                case.by_person = True
                actions += self._begin(case, now_ms)
            else:
                decision = Decision.RELEASED if ruling is Ruling.RELEASE else Decision.DISCARDED
                actions += self._decide(case, decision, now_ms)
        return "", actions


def _rows_of(committable: Committable) -> int:
    return int(committable.payload["rows"])


def _failed(answer: GateAnswer) -> list[Expected]:
    return [one for one in answer.expectations if not one.met]


def _no_verdict(answer: GateAnswer, rows: int) -> str:
    """Says why an answer is none. A suite without expectations would let everything pass."""
    if not answer.expectations:
        return "it evaluated no expectation"
    if answer.rows != rows:
        return f"it saw {answer.rows} rows, and the sink wrote {rows}"
    return ""
