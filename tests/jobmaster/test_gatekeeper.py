"""`Gatekeeper` alone: which answers count, when time is over, and what a person may decide."""

from __future__ import annotations

import pytest

from engine.core.gates import Gate
from engine.jobmaster import events
from engine.jobmaster.actions import Action, AskGate, EndGate, Note
from engine.jobmaster.gatekeeper import Gatekeeper, GateOutcome, Ruled
from engine.protocol.gate import Decision, Expected, GateAnswer, Ruling
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable, Manifest

ATTEMPT = AttemptId(1, 1)


class Desk:
    """Two sinks with a row each in checkpoint 7, and what the Gatekeeper has asked, noted and said."""

    def __init__(self, on_timeout: str = "hold") -> None:
        gate = Gate.sql("n > 0", on_timeout=on_timeout, timeout="1 s")
        self.outcomes: list[GateOutcome] = []
        self.asked: dict[str, int] = {}
        self.notes: list[object] = []
        self.ended = 0
        self.keeper = Gatekeeper({"a": gate, "b": gate}, lambda: 5, 50, self._tell)
        commits = [Committable(uid, 0, ATTEMPT, 7, 1, {"path": f"{uid}.parquet", "rows": 1}) for uid in "ab"]
        self.do(self.keeper.judge(Manifest("job", 3, 7, ATTEMPT, 0, 128, [], commits, commits, {}), 0.0))

    def _tell(self, outcome: GateOutcome, now_ms: float) -> list[Action]:
        self.outcomes.append(outcome)
        return []

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case AskGate(question):
                    self.asked[question.sink] = question.number
                case Note(event):
                    self.notes.append(event)
                case EndGate():
                    self.ended += 1

    def answer(self, sink: str, *, met: bool = True, rows: int = 1, number: int | None = None, at: float = 1.0) -> None:
        number = self.asked[sink] if number is None else number
        self.do(self.keeper.on_answer(GateAnswer(number, rows, 0 if met else 1, [Expected("n > 0", met)]), at))

    def rule(self, ruling: Ruling, at: float = 1.0) -> str:
        why, actions = self.keeper.rule(7, ruling, at)
        self.do(actions)
        return why

    @property
    def decisions(self) -> list[Decision]:
        (outcome,) = self.outcomes
        assert isinstance(outcome, Ruled)
        return [one.decision for one in outcome.verdicts]


@pytest.mark.promise("H5")
def test_an_answer_that_comes_twice_counts_once_and_the_epoch_is_ruled_on_once() -> None:
    desk = Desk()
    first = desk.asked["a"]
    desk.answer("a")
    desk.answer("a", number=first, met=False)
    desk.answer("b")
    desk.answer("b")
    assert desk.decisions == [Decision.PASSED, Decision.PASSED]
    assert desk.notes == [events.GateAnswerIgnored(first), events.GateAnswerIgnored(desk.asked["b"])]


@pytest.mark.promise("H5")
def test_a_late_answer_does_not_release_what_is_held() -> None:
    desk = Desk()
    desk.do(desk.keeper.on_tick(1000.0))
    assert [one.sink for one in desk.keeper.held] == ["a", "b"] and desk.ended == 2
    desk.answer("a", at=1001.0)
    assert len(desk.keeper.held) == 2 and not desk.outcomes


def test_an_answer_about_another_number_of_rows_is_no_verdict_and_the_gate_is_asked_again() -> None:
    desk = Desk()
    before = desk.asked["a"]
    desk.answer("a", rows=2)
    assert "it saw 2 rows, and the sink wrote 1" in str(desk.notes)
    desk.do(desk.keeper.on_tick(desk.keeper.wakeup_ms or 0.0))
    assert desk.asked["a"] > before
    desk.answer("a", number=before)
    assert not desk.outcomes


@pytest.mark.promise("H5")
def test_a_person_decides_only_when_every_gate_has_spoken() -> None:
    desk = Desk()
    desk.answer("a", met=False)
    assert "another gate is still asked" in desk.rule(Ruling.RELEASE)
    desk.answer("b", met=False)
    assert desk.rule(Ruling.RELEASE) == "" and desk.decisions == [Decision.RELEASED, Decision.RELEASED]
    assert "no epoch is held now" in desk.rule(Ruling.DISCARD)


def test_a_gate_that_is_silent_when_it_is_asked_again_holds_the_epoch_whatever_its_policy_is() -> None:
    desk = Desk(on_timeout="pass")
    desk.answer("a", met=False)
    desk.answer("b")
    assert desk.rule(Ruling.RETRY, at=2.0) == "" and not desk.keeper.held
    desk.do(desk.keeper.on_tick(1002.0))
    assert [one.sink for one in desk.keeper.held] == ["a"] and not desk.outcomes


def test_what_is_dropped_is_never_decided() -> None:
    desk = Desk()
    desk.keeper.drop()
    desk.answer("a")
    desk.answer("b")
    assert not desk.outcomes and desk.keeper.wakeup_ms is None
