"""The warm process of a job's gates: it answers, hangs, dies, prints, is replaced. Real processes, without Spark."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.connectors.table import TableSink
from engine.core.gates import Found, Gate
from engine.process.gates import GateProcess, setup_of
from engine.protocol.gate import Expected, GateAnswer, GateQuestion


def rows(*values: int) -> pa.Table:
    return pa.table({"pv": pa.array(values, pa.int64())})


class Positive:
    def judge(self, rows: pa.Table) -> list[Found]:
        bad = [index for index, pv in enumerate(rows.column("pv").to_pylist()) if pv < 0]
        return [Found(Expected("positive", not bad, len(bad)), bad)]


class Hangs(Positive):
    """Hangs if there is one row only."""

    def judge(self, rows: pa.Table) -> list[Found]:
        if rows.num_rows == 1:
            Path(os.environ.get("WEIR_TEST_HANGS", os.devnull)).write_text("it hangs now")
            time.sleep(600)
        return super().judge(rows)


class DiesAtFirst(Positive):
    """Ends its process at the first question that it ever gets."""

    def judge(self, rows: pa.Table) -> list[Found]:
        if rows.num_rows == 1:
            os._exit(3)
        return super().judge(rows)


class Prints(Positive):
    def judge(self, rows: pa.Table) -> list[Found]:
        print('{"number": 1}', flush=True)
        os.write(1, b"not an answer\n")
        return super().judge(rows)


class Asked:
    """The process of the gates of one table, and its answers as they come."""

    def __init__(self, store: Path, judge: str) -> None:
        self.store = store
        self.answers: queue.Queue[GateAnswer] = queue.Queue()
        sink = TableSink("pv", gate=Gate.judge(f"{__name__}:{judge}"))
        setup = setup_of([("out", sink)], str(store))
        assert setup is not None
        self.gates = GateProcess(setup, [str(Path.cwd()), *sys.path], self.answers.put)
        self._asks = setup.judges[0]

    def ask(self, number: int, table: pa.Table) -> GateQuestion:
        pq.write_table(table, self.store / f"{number}.parquet")
        question = GateQuestion(number, "out", "judge", self._asks, [f"{number}.parquet"], 1, 1)
        self.gates.ask(question)
        return question

    def answer(self) -> GateAnswer:
        return self.answers.get(timeout=120)


@pytest.fixture
def asked(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    monkeypatch.setenv("WEIR_TEST_HANGS", str(tmp_path / "hangs"))
    made = Asked(tmp_path, getattr(request, "param", "Positive"))
    yield made
    made.gates.close()


@pytest.mark.parametrize("asked", ["Hangs"], indirect=True)
def test_a_process_that_hangs_is_ended_and_the_next_question_starts_another(asked: Asked) -> None:
    asked.ask(1, rows(1))
    while not (asked.store / "hangs").exists():
        time.sleep(0.01)
    asked.gates.end("the test is tired of it")
    assert "ended with code -9" in asked.answer().error
    asked.ask(2, rows(1, -2))
    assert (asked.answer().refused, asked.gates.pid is not None) == (1, True)


@pytest.mark.parametrize("asked", ["Hangs"], indirect=True)
def test_a_question_whose_process_is_ended_before_it_gets_it_is_asked_of_no_other_one(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would end that one, and every later question would wait for it."""
    running = asked.gates._running

    def ended_first() -> subprocess.Popen[bytes]:
        child = running()
        if asked.gates._asking is not None:
            asked.gates.end("the question took too long")
            child.wait()
        return running()

    monkeypatch.setattr(asked.gates, "_running", ended_first)
    asked.ask(1, rows(1))
    assert "was ended" in asked.answer().error
    monkeypatch.undo()
    asked.ask(2, rows(1, -2))
    assert asked.answer().refused == 1


def test_a_process_that_dies_between_two_questions_is_replaced(asked: Asked) -> None:
    asked.ask(1, rows(1))
    assert asked.answer().refused == 0
    pid = asked.gates.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    asked.ask(2, rows(1, -2))
    second = asked.answer()
    assert (second.refused, asked.gates.pid != pid) == (1, True)


@pytest.mark.parametrize("asked", ["Prints"], indirect=True)
def test_what_a_judge_prints_is_no_answer(asked: Asked) -> None:
    asked.ask(7, rows(-1))
    answer = asked.answer()
    assert (answer.number, answer.refused, answer.error) == (7, 1, "")


@pytest.mark.parametrize("asked", ["missing"], indirect=True)
def test_a_judge_that_is_not_there_says_so(asked: Asked) -> None:
    asked.ask(1, rows(1))
    assert "has no attribute 'missing'" in asked.answer().error


def test_a_file_that_is_gone_is_an_error_and_no_verdict(asked: Asked) -> None:
    question = asked.ask(1, rows(1))
    assert asked.answer().error == ""
    (asked.store / question.files[0]).unlink()
    asked.gates.ask(question)
    assert "FileNotFoundError" in asked.answer().error


def test_the_process_ends_with_its_job(asked: Asked) -> None:
    asked.ask(1, rows(1))
    asked.answer()
    pid = asked.gates.pid
    assert pid is not None
    asked.gates.close()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("asked", ["Hangs"], indirect=True)
def test_a_question_that_an_attempt_has_left_behind_does_not_keep_the_next_one_waiting(asked: Asked) -> None:
    asked.ask(1, rows(1))  # hangs, and nobody waits for it any more
    asked.ask(2, rows(1))
    asked.ask(3, rows(1, -2))
    while (answer := asked.answer()).number != 3:
        assert answer.error
    assert (answer.refused, answer.error) == (1, "")


@pytest.mark.parametrize("asked", ["DiesAtFirst"], indirect=True)
def test_a_process_that_ended_is_started_before_it_is_asked_again(asked: Asked) -> None:
    asked.ask(1, rows(1))
    assert "ended with code 3" in asked.answer().error
    deadline = time.monotonic() + 60
    while not (pid := asked.gates.pid) or not Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "no process is kept warm for the next question"
        time.sleep(0.02)


_MASTER = """
import sys, time
from pathlib import Path
from tests.process.test_gates import Asked, rows
asked = Asked(Path(sys.argv[1]), "Hangs")
asked.ask(1, rows(1))
while not Path(sys.argv[2]).exists():
    time.sleep(0.01)
print(asked.gates.pid, flush=True)
time.sleep(600)
"""


def test_a_process_that_hangs_does_not_outlive_its_jobmaster(tmp_path: Path) -> None:
    hangs = str(tmp_path / "hangs")
    master = subprocess.Popen(
        [sys.executable, "-c", _MASTER, str(tmp_path), hangs],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "WEIR_TEST_HANGS": hangs},
    )
    assert master.stdout is not None
    pid = int(master.stdout.readline())
    master.kill()
    master.wait()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    left = Path(f"/proc/{pid}").exists()
    if left:
        os.kill(pid, signal.SIGKILL)
    assert not left
