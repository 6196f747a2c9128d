"""A suite of Great Expectations as a commit gate, without Spark: in this process, and in the warm process of a job.

What that process does when it hangs or dies: tests/process/test_gates.py.
"""

from __future__ import annotations

import os
import queue
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checks.gate import SuiteJudge, gxe
from engine.api import StreamEnvironment
from engine.connectors.table import TableSink
from engine.core.gates import Gate
from engine.process.gates import GateProcess, setup_of
from engine.protocol.gate import GateAnswer, GateQuestion
from engine.testing import ListSource, run

ROWS = 100_000


def rows(*values: int | None) -> pa.Table:
    return pa.table({"app": pa.array(["a"] * len(values)), "pv": pa.array(values, pa.int64())})


def not_negative() -> SuiteJudge:
    return SuiteJudge(
        gxe.ExpectColumnValuesToNotBeNull(column="app"),
        gxe.ExpectColumnValuesToBeBetween(column="pv", min_value=0),
        gxe.ExpectColumnValuesToBeInSet(column="app", value_set=["a", "b"]),
        gxe.ExpectTableRowCountToBeBetween(min_value=1),
        gxe.ExpectColumnMeanToBeBetween(column="pv", min_value=-1_000_000),
    )


# --- the suite ---


@pytest.mark.promise("H5")
def test_a_suite_names_the_rows_that_it_refuses() -> None:
    by_name = {one.expected.name.partition("(")[0]: one for one in not_negative().judge(rows(1, -2, 3, -4))}
    refused = by_name["expect_column_values_to_be_between"]
    assert (refused.expected.met, refused.rows, refused.expected.refused) == (False, [1, 3], 2)
    assert "{'app': 'a', 'pv': -2}" in refused.expected.detail
    assert all(one.expected.met for name, one in by_name.items() if one is not refused) and len(by_name) == 5


def test_an_expectation_about_all_rows_names_none() -> None:
    (found,) = SuiteJudge(gxe.ExpectTableRowCountToBeBetween(min_value=3)).judge(rows(1, 2))
    assert (found.expected.met, found.rows, found.expected.refused, found.expected.detail) == (
        False,
        None,
        2,
        "observed 2",
    )


def test_large_integers_beside_null_are_compared_exactly() -> None:
    (found,) = SuiteJudge(gxe.ExpectColumnValuesToBeInSet(column="pv", value_set=[2**53])).judge(rows(None, 2**53 + 1))
    assert found.rows == [1]


def test_an_expectation_that_can_not_be_evaluated_is_no_verdict() -> None:
    with pytest.raises(RuntimeError, match="lacks"):
        SuiteJudge(gxe.ExpectColumnMeanToBeBetween(column="lacks", min_value=0)).judge(rows(1))


def test_a_suite_keeps_nothing_of_the_epochs_that_it_has_judged() -> None:
    judge = SuiteJudge(gxe.ExpectColumnValuesToBeBetween(column="pv", min_value=0))
    for _ in range(2):
        judge.judge(pa.table({"pv": pa.array([1, -2], pa.int64())}))
    assert not judge._suite._kept.list_keys(), "the process of the gates would grow for ever"


def test_a_suite_needs_an_expectation() -> None:
    with pytest.raises(ValueError, match="name at least one"):
        SuiteJudge()


@pytest.mark.promise("H5")
def test_rows_that_a_suite_refuses_become_dead_letters() -> None:
    def job(env: StreamEnvironment) -> None:
        source = env.from_source(
            ListSource([{"app": "a", "pv": n} for n in (1, -2, 3)]), "app string, pv long", uid="s"
        )
        gate = Gate.judge("tests.checks.test_gate:not_negative", on_fail="dead_letter")
        source.sink_to(TableSink("pv", gate=gate), uid="out")

    done = run(job)
    assert sorted(row["pv"] for row in done.rows("pv")) == [1, 3]
    assert [row["pv"] for row in done.rows("pv_dead_letter")] == [-2]


# --- the warm process ---


def cpu_s(pid: int) -> float:
    """Returns the seconds of processor time that a process has used: others use these cores, too."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.promise("H5")
def test_a_warm_process_judges_a_hundred_thousand_rows_within_the_target(tmp_path: Path) -> None:
    answers: queue.Queue[GateAnswer] = queue.Queue()
    gate = Gate.judge(f"{__name__}:not_negative")
    setup = setup_of([("out", TableSink("pv", gate=gate))], str(tmp_path))
    assert setup is not None
    pq.write_table(rows(*range(ROWS)), tmp_path / "rows.parquet")
    gates, used = GateProcess(setup, [str(Path.cwd()), *sys.path], answers.put), []
    try:
        for number in range(1, 7):
            before = cpu_s(gates.pid) if gates.pid is not None else 0.0
            gates.ask(GateQuestion(number, "out", gate.kind, gate.asks, ["rows.parquet"], 1, 1))
            answer = answers.get(timeout=300)
            assert (answer.error, answer.number, answer.rows, answer.refused) == ("", number, ROWS, 0)
            assert gates.pid is not None
            used.append(cpu_s(gates.pid) - before)
    finally:
        gates.close()
    assert min(used[1:]) < 0.3, used  # the first one includes what the process imports
