"""The commit gate, as the author of a job sees it: what becomes of rows that a gate refuses.

Topology: one source, one table, in one process (`engine.testing`), with the real JobMaster, files and conditions.
Checks: what readers see, the manifest's verdict, the ledger, and the end of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from engine.api import StreamEnvironment
from engine.connectors.table import TableSink
from engine.core.errors import JobError
from engine.core.gates import Found, Gate
from engine.jobmaster.events import Aborted, EpochHeld, GateRuled, Triggered
from engine.protocol.gate import Decision, Expected, GateQuestion, Ruling
from engine.protocol.manifest import Manifest
from engine.snapshot.epoch_log import EpochLog
from engine.testing import Checkpoint, Crash, JobFailed, ListSource, LocalRun, run

Item = Any
JUDGES = "tests.test_gates"


def ints(values: Sequence[Item], gate: Gate | None) -> Callable[[StreamEnvironment], None]:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing(interval="1 h")
        rows = [value if not isinstance(value, int) else {"n": value} for value in values]
        source = env.from_source(ListSource(rows), schema="n long", uid="numbers")
        source.sink_to(TableSink("out", gate=gate), uid="out")

    return job


def seen(run: LocalRun, table: str = "out") -> list[int]:
    return sorted(row["n"] for row in run.rows(table))


def manifest_of(run: LocalRun) -> Manifest:
    assert run.master.newest is not None
    return EpochLog(run.store, run.paths).read_manifest(run.master.newest)


@pytest.mark.promise("H5")
def test_rows_that_pass_are_published_and_the_verdict_is_in_the_manifest() -> None:
    done = run(ints([1, 2, 3], Gate.sql("n > 0")))
    (verdict,) = manifest_of(done).verdicts
    assert seen(done) == [1, 2, 3]
    assert (verdict.sink, verdict.gate, verdict.decision, verdict.rows) == ("out", "n > 0", Decision.PASSED, 3)
    assert verdict.expectations == [Expected("n > 0", True)]


@pytest.mark.promise("H5")
def test_a_gate_that_stops_ends_the_job_and_the_error_names_gate_and_rows() -> None:
    with pytest.raises(JobFailed, match=r"gate 'n > 0' of sink 'out' stops .* 1 of 3 rows .*\{'n': -2\}"):
        run(ints([1, -2, 3], Gate.sql("n > 0", on_fail="stop")))


@pytest.mark.promise("H5")
def test_epochs_before_the_one_that_stops_the_job_stay_published() -> None:
    job = ints([1, 2, Checkpoint(), -3, 4], Gate.sql("n > 0", on_fail="stop"))
    first = run(job, until=lambda run: run.epochs == 1)
    with pytest.raises(JobFailed):
        first.run()
    assert seen(first) == [1, 2]


@pytest.mark.promise("H5")
def test_a_held_epoch_is_published_as_it_was_when_a_person_releases_it() -> None:
    held = run(ints([1, -2, 3], Gate.sql("n > 0")), until=lambda run: bool(run.held_epochs))
    assert (held.epochs, held.rows("out") if held.epochs else []) == (0, [])
    assert [event.refused for event in held.events if isinstance(event, EpochHeld)] == [1]
    held.rule_on_held(Ruling.RELEASE)
    held.run()
    (verdict,) = manifest_of(held).verdicts
    assert (seen(held), verdict.decision, verdict.refused, verdict.withheld) == ([-2, 1, 3], Decision.RELEASED, 1, 0)


@pytest.mark.promise("H5")
def test_a_discarded_epoch_leaves_out_the_rows_for_good_and_the_ledger_says_so() -> None:
    held = run(ints([1, Checkpoint(), -2, 3], Gate.sql("n > 0")), until=lambda run: bool(run.held_epochs))
    held.rule_on_held(Ruling.DISCARD)
    held.run()
    manifest = manifest_of(held)
    assert seen(held) == [1]
    assert (manifest.ledger["sink:out"], manifest.ledger["withheld:out"]) == (1, 2)
    assert [event.decision for event in held.events if isinstance(event, GateRuled)] == ["discarded"]


@pytest.mark.promise("H5", "H1")
def test_rows_that_were_left_out_before_a_restart_are_counted_once() -> None:
    rows = [1, Checkpoint(), -2, 3, Checkpoint(), Crash(), 4]
    held = run(ints(rows, Gate.sql("n > 0")), until=lambda run: bool(run.held_epochs))
    held.rule_on_held(Ruling.DISCARD)
    held.run()
    ledger = manifest_of(held).ledger
    assert (seen(held), ledger["sink:out"], ledger["withheld:out"]) == ([1, 4], 2, 2)
    assert held.master.stats.restarts == 1


@pytest.mark.promise("H5")
def test_refused_rows_go_to_the_dead_letter_table_and_the_others_are_published() -> None:
    done = run(ints([1, -2, 3, Checkpoint(), 4, -5], Gate.sql("n > 0", on_fail="dead_letter")))
    assert (seen(done), seen(done, "out_dead_letter")) == ([1, 3, 4], [-5, -2])
    manifest = manifest_of(done)
    assert (manifest.ledger["sink:out"], manifest.ledger["withheld:out"]) == (3, 2)
    assert [one.decision for one in manifest.verdicts] in ([], [Decision.DEAD_LETTER])
    files = [path for path in done.store.files if path.endswith(".parquet")]
    assert sum("_dead_letter/" in path for path in files) == 2
    assert all("-kept" in path or "_dead_letter/" in path for path in files)  # nothing is left of what was split


@pytest.mark.promise("H5")
def test_the_digest_of_the_ledger_is_that_of_the_published_rows() -> None:
    plain = run(ints([1, 3, 4], None))
    for on_fail in ("dead_letter", "hold"):
        split = run(ints([1, 3, 4, Checkpoint(), -2], Gate.sql("n > 0", on_fail=on_fail)), until=_ended_or_held)
        if split.held_epochs:
            split.rule_on_held(Ruling.DISCARD)
            split.run()
        assert manifest_of(split).ledger["digest:out"] == manifest_of(plain).ledger["digest:out"]


def _ended_or_held(run: LocalRun) -> bool:
    return bool(run.held_epochs)


def test_a_condition_about_all_rows_sends_all_of_them_to_the_dead_letters() -> None:
    done = run(ints([1, 2, 3, Checkpoint(), 4], Gate.sql("count(*) < 3", on_fail="dead_letter")))
    assert (seen(done), seen(done, "out_dead_letter")) == ([4], [1, 2, 3])


def test_a_row_whose_condition_is_null_is_refused() -> None:
    held = run(ints([1, {"n": None}], Gate.sql("n > 0")), until=lambda run: bool(run.held_epochs))
    assert held.held_epochs[0].refused == 1


def test_an_epoch_without_rows_is_not_judged() -> None:
    done = run(ints([], Gate.sql("n > 0", on_fail="stop")))
    assert manifest_of(done).verdicts == []


def test_a_job_whose_epoch_is_held_says_so_in_a_test() -> None:
    with pytest.raises(JobFailed, match=r"the gate of sink 'out' holds epoch 1: 1 of 1 rows"):
        run(ints([-1], Gate.sql("n > 0")))


def test_a_job_that_starts_again_asks_about_a_held_epoch_again() -> None:
    job = ints([1, -2], Gate.sql("n > 0"))
    first = run(job, until=lambda run: bool(run.held_epochs))
    again = run(job, after=first, until=lambda run: bool(run.held_epochs))
    again.rule_on_held(Ruling.RELEASE)
    assert seen(again.run()) == [-2, 1]


@pytest.mark.promise("H5", "D4")
@pytest.mark.parametrize("held", [False, True], ids=["while the gate is asked", "while the epoch is held"])
def test_an_attempt_that_fails_before_its_epoch_is_ruled_on_aborts_it_and_the_next_one_is_asked_about(
    held: bool,
) -> None:
    job = LocalRun(ints([1, -2, 3], Gate.sql("n > 0")), 1, {})
    asked: list[GateQuestion] = []
    if not held:
        job._ask_gate = asked.append  # type: ignore[method-assign]
    job.run(until=lambda: bool(job.held_epochs or asked))
    checkpoint = next(event.checkpoint for event in job.events if isinstance(event, Triggered))
    job._replace(job.slots[0])
    assert [event.checkpoint for event in job.events if isinstance(event, Aborted)] == [checkpoint]
    refusal, _ = job.master.rule(checkpoint, Ruling.RELEASE, job.now_ms())
    assert refusal is not None and not job.held_epochs
    if not held:
        del job._ask_gate
        job._ask_gate(asked[0])  # its answer comes after all
    job.run(until=lambda: bool(job.held_epochs))
    assert job.held_epochs[0].checkpoint > checkpoint
    job.rule_on_held(Ruling.RELEASE)
    assert seen(job.run()) == [-2, 1, 3]


def test_a_sink_goes_on_with_another_gate_and_the_dead_letters_stay() -> None:
    first = run(
        ints([1, -2, Checkpoint(), 3], Gate.sql("n > 0", on_fail="dead_letter")), until=lambda run: run.epochs == 1
    )
    second = run(ints([1, -2, Checkpoint(), 3], Gate.sql("n > 0")), after=first)
    assert (seen(second), seen(second, "out_dead_letter")) == ([1, 3], [-2])


# --- judges ---


class Even:
    """Refuses odd numbers, and says which."""

    def judge(self, rows: pa.Table) -> list[Found]:
        odd = [i for i, n in enumerate(rows.column("n").to_pylist()) if n % 2]
        return [Found(Expected("numbers are even", not odd, len(odd)), odd)]


class Silent:
    """Evaluates nothing, as an empty suite does."""

    def judge(self, rows: pa.Table) -> list[Found]:
        return []


class Broken:
    def judge(self, rows: pa.Table) -> list[Found]:
        raise RuntimeError("the judge has a bug")


def test_a_judge_is_found_by_its_import_path() -> None:
    done = run(ints([1, 2, 4], Gate.judge(f"{JUDGES}:Even", on_fail="dead_letter")))
    assert (seen(done), seen(done, "out_dead_letter")) == ([2, 4], [1])


@pytest.mark.parametrize(
    "judge, said", [("Silent", "evaluated no expectation"), ("Broken", "RuntimeError: the judge has a bug")]
)
def test_a_judge_that_says_nothing_about_the_rows_lets_none_pass(judge: str, said: str) -> None:
    held = run(ints([2], Gate.judge(f"{JUDGES}:{judge}", timeout="1 s")), until=lambda run: bool(run.held_epochs))
    assert held.held_epochs[0].why.startswith("the gate gave no verdict in 1 s") and said in held.held_epochs[0].why
    held.rule_on_held(Ruling.RELEASE)
    assert seen(held.run()) == [2]


def test_rows_pass_unjudged_if_the_gate_is_made_so() -> None:
    done = run(ints([2], Gate.judge(f"{JUDGES}:Broken", timeout="1 s", on_timeout="pass")))
    assert seen(done) == [2] and [one.decision for one in manifest_of(done).verdicts] == [Decision.UNJUDGED]


def test_a_gate_without_a_verdict_stops_the_job_if_it_is_made_so() -> None:
    with pytest.raises(JobFailed, match=r"stops the job before epoch 1 .* no verdict in 1 s: RuntimeError"):
        run(ints([2], Gate.judge(f"{JUDGES}:Broken", timeout="1 s", on_timeout="stop")))


class BlamesNoRow:
    """Fails, and names no row: an expectation about single rows, as it says, and none of them."""

    def judge(self, rows: pa.Table) -> list[Found]:
        return [Found(Expected("all is well", False), [])]


@pytest.mark.promise("H5")
def test_rows_that_a_judge_refuses_without_naming_one_are_not_published() -> None:
    done = run(ints([1, 2], Gate.judge(f"{JUDGES}:BlamesNoRow", on_fail="dead_letter")))
    assert (seen(done), seen(done, "out_dead_letter")) == ([], [1, 2])


def test_a_job_that_was_cancelled_takes_no_decision_any_more() -> None:
    held = run(ints([1, -2, 3], Gate.sql("n > 0")), until=lambda run: bool(run.held_epochs))
    checkpoint = held.held_epochs[0].checkpoint
    held.carry_out(held.master.cancel(held.now_ms()))
    refusal, actions = held.master.rule(checkpoint, Ruling.RELEASE, held.now_ms())
    assert refusal is not None and "the job has ended" in refusal.why and not actions


def test_a_refused_row_of_a_megabyte_is_shown_in_part() -> None:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing(interval="1 h")
        rows = ListSource([{"n": -1, "text": "x" * 1_000_000}])
        source = env.from_source(rows, schema="n long, text string", uid="numbers")
        source.sink_to(TableSink("out", gate=Gate.sql("n > 0")), uid="out")

    held = run(job, until=lambda run: bool(run.held_epochs))
    assert "'n': -1" in held.held_epochs[0].why and len(held.held_epochs[0].why) < 1_000


# --- mistakes, before anything runs ---


def test_another_sink_can_not_write_the_dead_letter_table() -> None:
    def job(env: StreamEnvironment) -> None:
        source = env.from_source(ListSource([{"n": 1}]), schema="n long", uid="numbers")
        source.sink_to(TableSink("out", gate=Gate.sql("n > 0", on_fail="dead_letter")), uid="out")
        source.sink_to(TableSink("out_dead_letter"), uid="dead")

    with pytest.raises(JobError, match=r"the sinks 'out' and .*dead.* both write to the table 'out_dead_letter'"):
        run(job)


@pytest.mark.parametrize("condition", ["n >", "m > 0", "n + 1"])
def test_a_condition_that_can_not_be_evaluated_is_refused_when_the_job_is_built(condition: str) -> None:
    with pytest.raises(JobError, match=r"the gate .* can't be evaluated: .*columns n"):
        run(ints([1], Gate.sql(condition)))


def test_mistakes_in_a_gate_say_what_to_write() -> None:
    for make in (
        lambda: Gate.sql("n > 0", on_fail="holdd"),
        lambda: Gate.sql("n > 0", on_timeout="dead_letter"),
        lambda: Gate.sql(" "),
        lambda: Gate.sql("n > 0", timeout=0),
        lambda: Gate.judge("tests.test_gates"),
        lambda: TableSink("out", gate="n > 0"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=r"choose one of|write|needs"):
            make()
