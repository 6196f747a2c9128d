"""Questions and commands of HTTP reach the deciding thread; only a command may end it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.core.errors import NoAnswer
from engine.host.launch import MasterLaunch
from engine.host.lifeline import Lifeline
from engine.host.mailbox import Mailbox
from engine.host.run_folder import MasterExit, RunFolder
from engine.host.upgrade_request import AskedUpgrade
from engine.jobmaster.actions import Outcome, Stop
from engine.jobmaster.savepoints import Refusal
from engine.process.master_process import MasterProcess


class Deciding:
    """A `MasterProcess` of which only the deciding thread is there."""

    def __init__(self) -> None:
        self.process = MasterProcess.__new__(MasterProcess)
        self.process._mailbox = Mailbox()
        self.process._end = None
        self.raised: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while True:
                work: Any = self.process._mailbox.take(120.0)
                if work is None:
                    return
                work()
        except Exception as error:
            self.raised = error


def test_a_question_that_raises_hurts_the_asker_only() -> None:
    deciding = Deciding()
    with pytest.raises(ValueError, match="Exceeds the limit"):
        deciding.process.ask(lambda: int("9" * 5000))
    assert deciding.process.ask(lambda: 42) == 42 and deciding.raised is None


def test_a_question_that_times_out_by_itself_is_not_asked_again() -> None:
    deciding = Deciding()

    def question() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        deciding.process.ask(question)


def test_a_command_that_raises_ends_the_deciding_thread_so_that_it_is_replaced() -> None:
    deciding = Deciding()
    with pytest.raises(RuntimeError, match="half"):
        deciding.process.decide(lambda: (_ for _ in ()).throw(RuntimeError("half")))
    deciding.thread.join(60)
    assert isinstance(deciding.raised, RuntimeError)


def test_a_job_that_has_ended_answers_nothing() -> None:
    process = MasterProcess.__new__(MasterProcess)
    process._mailbox = Mailbox()
    process._end = type("End", (), {"reason": "all done"})()
    with pytest.raises(NoAnswer, match="the job has ended: all done"):
        process.ask(lambda: 1)


def test_a_job_inside_of_a_script_can_not_be_upgraded_over_http() -> None:
    process = MasterProcess.__new__(MasterProcess)
    process._start_upgrade = None
    refused = process.request_upgrade(AskedUpgrade())
    assert isinstance(refused, Refusal) and "inside a script or a notebook" in refused.why
    process._start_upgrade = lambda asked: f"upgrade to {asked.to}"
    assert process.request_upgrade(AskedUpgrade("job:v2")) == "upgrade to job:v2"


@pytest.mark.promise("D6", "H8")
def test_the_supervisor_hears_how_the_job_ended_before_a_full_disk_can_keep_it_from_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    told: list[MasterExit] = []
    monkeypatch.setattr(Lifeline, "tell_end", lambda self, end: told.append(end))
    monkeypatch.setattr(RunFolder, "want_stopped_here", full)
    process = MasterProcess.__new__(MasterProcess)
    process._launch = MasterLaunch(path="", name="numbers", store=str(tmp_path), max_slots=1, id="first")
    process._folder, process._lifeline, process._began = RunFolder(tmp_path, "numbers"), Lifeline(), True
    process._end = Stop(Outcome.STOPPED, "stopped behind epoch 5")
    process.master = SimpleNamespace(attempt=SimpleNamespace(generation=1))  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space left"):
        process._leave()
    assert told == [MasterExit(Outcome.STOPPED, "stopped behind epoch 5")]


@pytest.mark.parametrize("outcome", [Outcome.STOPPED, Outcome.CANCELLED, Outcome.FAILED])
def test_a_bucket_hears_that_a_job_was_cancelled_or_stopped_before_its_process_ends(outcome: Outcome) -> None:
    """It was told in the background, and `weir resume --all` started jobs again that had been cancelled."""
    done: list[str] = []
    folder = SimpleNamespace(
        want_stopped_here=lambda by: done.append("wanted"),
        share_desired=lambda: done.append("shared"),
        write_exit=lambda ended, launch: done.append("written"),
    )
    process = MasterProcess.__new__(MasterProcess)
    process._end, process._began, process._launch = Stop(outcome, "why"), True, None  # type: ignore[assignment]
    process._folder, process._lifeline = folder, SimpleNamespace(tell_end=lambda ended: None)  # type: ignore[assignment]
    process._replaced = lambda: False  # type: ignore[method-assign]
    process._leave()
    before = {Outcome.STOPPED: ["wanted", "shared"], Outcome.CANCELLED: ["shared"], Outcome.FAILED: []}
    assert done == [*before[outcome], "written"]
