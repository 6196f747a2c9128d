"""`weir gate`, its routes, and how a held epoch is shown, without Spark. On Spark: tests/cluster/test_gates.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from engine.cli.liveview import render
from engine.cli.main import app
from engine.cli.shared import console
from engine.core.errors import WeirError
from engine.jobmaster.savepoints import Refusal
from engine.jobmaster.status import CheckpointStatus
from engine.observe.client import JobClient
from engine.observe.gate_routes import GateStatus
from engine.observe.metrics import exposition
from engine.observe.timeline import CheckpointDetail
from engine.protocol.gate import Ruling
from engine.protocol.savepoint import StopRequest
from engine.protocol.scaling import Scaling
from tests.observe.answering import NAME, AnsweringRun, gated_job
from tests.observe.test_http import ask, documented, shape


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AnsweringRun:
    """A job whose last epoch is held. Its client talks to it without HTTP."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIR_STORE", str(tmp_path))
    monkeypatch.setattr(console, "width", 200)
    made = AnsweringRun(tmp_path, gated_job)
    made.run(until=lambda: bool(made.held_epochs))

    def rule(self: JobClient, checkpoint: int, ruling: Ruling) -> None:
        refusal = made.rule(checkpoint, ruling)
        if refusal is not None:
            raise WeirError(refusal.why)

    def wait(self: JobClient, checkpoint: int, timeout_s: float) -> CheckpointDetail:
        made.run(until=lambda: is_over(made, checkpoint))
        record = made.timeline.checkpoint(checkpoint)
        assert record is not None
        return record.with_parts()

    monkeypatch.setattr(JobClient, "gate", lambda self: GateStatus(made.held_epochs, made.master.verdicts))
    monkeypatch.setattr(JobClient, "rule", rule)
    monkeypatch.setattr(JobClient, "wait_for_checkpoint", wait)
    return made


def is_over(run: AnsweringRun, checkpoint: int) -> bool:
    record = run.timeline.checkpoint(checkpoint)
    return record is not None and record.over


def weir(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def shown(run: AnsweringRun) -> str:
    with console.capture() as captured:
        console.print(render(run.status(), framed=False))
    return captured.get()


@pytest.mark.promise("H5", "F1")
def test_a_held_epoch_is_shown_everywhere(run: AnsweringRun) -> None:
    held = run.held_epochs[0]
    told = weir("gate", NAME).stdout
    assert f"{held.refused} of {held.rows}" in told and "weir gate test release publishes it" in told
    assert json.loads(weir("gate", NAME, "--json").stdout)["held"][0]["checkpoint"] == held.checkpoint
    assert f"epoch {held.epoch} is held by the gate of out since" in shown(run)
    record = run.timeline.checkpoint(held.checkpoint)
    assert record is not None and record.status is CheckpointStatus.HELD and "pv >= 2" in record.detail
    listed = weir("checkpoints", NAME).stdout
    assert f"checkpoint {held.checkpoint} held: gate: sink 'out': " in listed
    assert 'weir_epoch_held{job="test"} 1.0' in exposition(run.status()).decode()


@pytest.mark.promise("H5", "F1")
@pytest.mark.parametrize(("decision", "words"), [("release", ""), ("discard", ", without the rows of out")])
def test_a_held_epoch_is_released_or_discarded_and_then_published(run: AnsweringRun, decision: str, words: str) -> None:
    epoch, number, rows = run.held_epochs[0].epoch, run.held_epochs[0].checkpoint, run.held_epochs[0].rows
    assert f"epoch {epoch} is published{words}" in weir("gate", NAME, decision).stdout
    record = run.timeline.checkpoint(number)
    assert record is not None and (record.status, record.why) == (CheckpointStatus.COMPLETED, "")
    assert (run.status().withheld_rows, run.held_epochs) == ({} if decision == "release" else {"out": rows}, [])
    again = weir("gate", NAME, decision)
    assert isinstance(again.exception, WeirError) and "holds an epoch now" in str(again.exception)
    assert f"out: {decision}" in weir("gate", NAME).stdout


def test_a_retry_asks_the_gate_again_and_it_holds_the_epoch_again(run: AnsweringRun) -> None:
    before = run.held_epochs
    assert "is asked again" in weir("gate", NAME, "retry").stdout
    assert run.held_epochs == []
    run.run(until=lambda: bool(run.held_epochs))
    assert [one.checkpoint for one in run.held_epochs] == [one.checkpoint for one in before]


def test_a_decision_about_another_checkpoint_changes_nothing(run: AnsweringRun) -> None:
    wrong = weir("gate", NAME, "release", "--checkpoint", "99")
    assert "checkpoint 99 is not held: it is checkpoint" in str(wrong.exception) and run.held_epochs


@pytest.mark.promise("H5", "D6")
def test_what_needs_an_epoch_is_refused_while_one_is_held(run: AnsweringRun) -> None:
    refusal, actions = run.master.stop(StopRequest(), run.now_ms())
    assert refusal is not None and "Decide on it first: weir gate test release" in refusal.why and not actions
    assert "Decide on it first" in run.rescale(Scaling(3)).why  # type: ignore[union-attr]


@pytest.mark.promise("H5", "D6")
def test_a_held_job_is_cancelled_without_its_epoch(run: AnsweringRun) -> None:
    epochs = run.epochs
    run.carry_out(run.master.cancel(run.now_ms()))
    assert run.ended is not None and (run.ended.outcome.value, run.epochs) == ("cancelled", epochs)


# --- HTTP ---


def test_the_routes_answer_as_they_are_documented(run: AnsweringRun) -> None:
    answer = ask(run, "/gate").json()
    assert shape(answer) == shape(json.loads(documented()["GET /gate"]))
    number = answer["held"][0]["checkpoint"]
    ruled: Any = ask(run, "/gate", "POST", body={"checkpoint": number, "decision": "release"})
    assert ruled.status_code == 202
    assert shape(ruled.json()) == shape(json.loads(documented()["POST /gate"]))
    verdict = json.loads(DOCUMENTED_VERDICT)
    run.run(until=lambda: is_over(run, number))
    assert shape(msgspec.to_builtins(run.master.verdicts[0])) == shape(verdict)


DOCUMENTED_VERDICT = next(
    part
    for part in (Path(__file__).parents[2] / "docs" / "rest.md").read_text().split("`")
    if part.startswith('{"sink"')
)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"checkpoint": 99, "decision": "release"}, 409),
        ({"decision": "release"}, 400),
        ({"checkpoint": 1, "decision": "x"}, 400),
    ],
)
def test_a_request_that_can_not_be_carried_out_says_why(run: AnsweringRun, body: Any, status: int) -> None:
    answer = ask(run, "/gate", "POST", body=body)
    assert answer.status_code == status and answer.json()["error"] and run.held_epochs


def test_nothing_is_held_in_a_job_without_gates(tmp_path: Path) -> None:
    assert AnsweringRun(tmp_path).rule(1, Ruling.RELEASE) == Refusal(
        "no epoch is held now: weir gate shows what a gate holds"
    )
