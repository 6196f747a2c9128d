"""`weir rescale` and `weir rescales` without Spark: what they say, and what they refuse. On Spark: test_rescale.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from engine.cli import rescaling
from engine.cli.main import app
from engine.cli.shared import console
from engine.core.errors import WeirError
from engine.jobmaster.events import Claimed
from engine.observe.client import JobClient
from engine.observe.rescales import RescaleRecord
from engine.protocol.scaling import Scaling
from tests.observe.answering import NAME, AnsweringRun, long_job


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AnsweringRun:
    """A running job whose client talks to it without HTTP."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIR_STORE", str(tmp_path))
    monkeypatch.setattr(console, "width", 200)
    made = AnsweringRun(tmp_path, long_job)
    made.run(until=lambda: made.master.stats.checkpoints_completed == 1)

    def rescale(self: JobClient, parallelism: int | None, operators: dict[str, int]) -> str | None:
        return getattr(made.rescale(Scaling(parallelism, operators)), "rescale", None)

    def wait(self: JobClient, rescale: str, timeout_s: float, on_state: Any) -> RescaleRecord:
        made.run(until=lambda: bool(made.rescales))
        return made.timeline.rescales[0]

    monkeypatch.setattr(JobClient, "rescale", rescale)
    monkeypatch.setattr(JobClient, "wait_for_rescale", wait)
    return made


def weir(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.promise("F1", "H6")
def test_a_rescale_prints_what_changed_the_pause_and_the_proof(run: AnsweringRun) -> None:
    shown = weir("rescale", NAME, "--operator", "pv=3").stdout
    assert f"{NAME} is rescaled: pv, out: 2 → 3" in shown and "pause " in shown and "from epoch 2" in shown
    digest = run.timeline.rescales[0].digest_before
    assert f"state before {digest}, after {digest}" in shown
    listed = weir("rescales", NAME).stdout
    assert "completed" in listed and "2 → 3" in listed
    assert json.loads(weir("rescales", NAME, "--json").stdout)[0]["to"]["pv"] == 3
    assert "runs at this parallelism already" in weir("rescale", NAME, "--operator", "pv=3").stdout


def test_a_failed_rescale_ends_with_its_reason(run: AnsweringRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(scaling: Scaling) -> None:
        raise OSError("no space left on device")

    object.__setattr__(run.master._rescaler._scale, "save", fails)
    ended = weir("rescale", NAME, "--parallelism", "3")
    assert isinstance(ended.exception, WeirError)
    assert "no space left on device. It goes on at parallelism 1, 2" in str(ended.exception)
    assert "no space left on device" in weir("rescales", NAME).stdout


@pytest.mark.parametrize("pair", ["pv", "pv=", "=3", "pv=three", "pv=-1", "pv=²"])
def test_an_operator_that_is_not_uid_and_number_is_refused(pair: str) -> None:
    with pytest.raises(WeirError, match="write UID=N"):
        rescaling._operators([pair])


def test_a_uid_may_have_an_equals_sign() -> None:
    assert rescaling._operators(["a=b=2"]) == {"a=b": 2}


def test_nothing_asked_for_is_an_error_that_says_what_to_ask_for(run: AnsweringRun) -> None:
    assert "--parallelism N" in str(weir("rescale", NAME).exception)


def test_a_job_that_was_never_rescaled_says_how(run: AnsweringRun) -> None:
    assert "was never rescaled; weir rescale test --parallelism N --store " in weir("rescales", NAME).stdout


def test_an_interrupted_rescale_does_not_claim_to_know_the_parallelism(
    run: AnsweringRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JobMaster may have died before or after the new parallelism was saved."""

    def interrupted(self: JobClient, rescale: str, timeout_s: float, on_state: Any) -> RescaleRecord:
        run.timeline.add(Claimed(generation=9, at_ms=5))
        return run.timeline.rescales[0]

    monkeypatch.setattr(JobClient, "wait_for_rescale", interrupted)
    ended = weir("rescale", NAME, "--operator", "pv=3")
    assert "was interrupted: the JobMaster died. `weir status test` shows" in str(ended.exception)
