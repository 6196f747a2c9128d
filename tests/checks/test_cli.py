"""Goal: `weir drill` and `weir audit` say the verdict in a table and by their exit code.

0: passed, 1: failed, 2: could not run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from checks import cli
from checks.catalogue import CATALOGUE, choose
from checks.drilled import DrillFailed
from checks.live.drill import LiveDrill
from checks.records import read_records
from checks.results import AuditResult, CheckResult, DrillResult, Struck, Verdict
from engine.cli.main import add_commands
from engine.core.errors import WeirError


def drilled(store: Path, name: str = "1", violations: list[str] | None = None) -> DrillResult:
    folder = store / "drills" / "pageviews" / name
    folder.mkdir(parents=True)
    result = DrillResult("pageviews", str(folder), 200_000, 1.25, 1, 11, 40, violations or [], 0, 20.0)
    result = msgspec.structs.replace(result, faults=[Struck(0, 4711, 1, 2, "1.1", after="1.2", recovery_s=1.25)])
    (folder / "drill.json").write_bytes(msgspec.json.encode(result))
    return result


def audited(*verdicts: Verdict) -> AuditResult:
    checks = [CheckResult(f"check_{n}", v, f"it is {v.value}") for n, v in enumerate(verdicts)]
    return AuditResult("pageviews", 11, checks, len(checks), len(checks), {"lost": 3, "duplicated": 0, "phantom": 0})


@pytest.fixture
def weir(monkeypatch: pytest.MonkeyPatch) -> Any:
    app = typer.Typer(pretty_exceptions_enable=False)
    add_commands(app)
    monkeypatch.setattr(cli.console, "_width", 160)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(("verdict", "code"), [(Verdict.PASSED, 0), (Verdict.FAILED, 1), (Verdict.COULD_NOT_RUN, 2)])
def test_the_exit_code_is_the_verdict(
    verdict: Verdict, code: int, weir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drilled(tmp_path)
    monkeypatch.setattr(cli, "run_audit", lambda *_, **__: audited(Verdict.PASSED, verdict))
    run = weir("audit", "pageviews", "--store", str(tmp_path))
    assert run.exit_code == code
    assert "check_1" in run.output and verdict.value in run.output and "lost 3" in run.output


def test_the_newest_drill_is_audited_unless_another_is_named(
    weir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("1", "3", "2"):
        drilled(tmp_path, name)
    seen: list[str] = []
    monkeypatch.setattr(
        cli, "run_audit", lambda spec, store, **_: seen.append(Path(store).name) or audited(Verdict.PASSED)
    )
    assert weir("audit", "pageviews", "--store", str(tmp_path)).exit_code == 0
    assert weir("audit", "assets.pageviews.job:job", "--store", str(tmp_path), "--drill", "1").exit_code == 0
    assert seen == ["3", "1"]
    missing = weir("audit", "pageviews", "--store", str(tmp_path), "--drill", "9")
    assert isinstance(missing.exception, WeirError) and "no drill '9'" in str(missing.exception)


def test_a_result_that_was_cut_short_is_named_with_what_to_do(weir: Any, tmp_path: Path) -> None:
    """It was "Input data was truncated", and nobody knew of which file."""
    drilled(tmp_path)
    cut = tmp_path / "drills" / "pageviews" / "1" / "drill.json"
    rehearsal = tmp_path / "rehearsals" / "pageviews" / "1" / "rehearsal.json"
    rehearsal.parent.mkdir(parents=True)
    for file, command in ((cut, "audit"), (rehearsal, "rehearsal")):
        file.write_bytes(b'{"job": "pagev')
        run = weir(command, "pageviews", "--store", str(tmp_path))
        assert isinstance(run.exception, WeirError), run.exception
        said = str(run.exception)
        assert str(file) in said and f"delete the folder {file.parent}; `weir " in said


def test_an_audit_without_a_drill_says_what_to_do(weir: Any, tmp_path: Path) -> None:
    run = weir("audit", "pageviews", "--store", str(tmp_path))
    assert isinstance(run.exception, WeirError) and "weir drill pageviews" in str(run.exception)


def test_a_drill_is_audited_and_what_its_reader_saw_counts(
    weir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = drilled(tmp_path, violations=["views at 12:00: 7 rows are not a whole number of epochs", "and another"])
    monkeypatch.setattr(cli, "run_drill", lambda *_, **__: seen)
    monkeypatch.setattr(cli, "run_audit", lambda *_, **__: audited(Verdict.PASSED))
    run = weir("drill", "pageviews", "--store", str(tmp_path), "--seed", "5")
    assert run.exit_code == 1
    assert "seed 5" in run.output and "7 rows are not a whole number of epochs (and 1 more)" in run.output


def test_what_the_reader_saw_counts_also_when_the_drill_is_audited_again(
    weir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drilled(tmp_path, violations=["views at 12:00: 7 rows are not a whole number of epochs"])
    monkeypatch.setattr(cli, "run_audit", lambda *_, **__: audited(Verdict.PASSED))
    assert weir("audit", "pageviews", "--store", str(tmp_path)).exit_code == 1


@pytest.mark.promise("H2")
def test_a_drill_that_could_not_be_carried_out_is_neither_pass_nor_fail(
    weir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impossible(*_: Any, **__: Any) -> DrillResult:
        raise DrillFailed("the reader of the tables died")

    monkeypatch.setattr(cli, "run_drill", impossible)
    run = weir("drill", "pageviews", "--store", str(tmp_path))
    assert run.exit_code == 2 and "could not be carried out: the reader of the tables died" in run.output


@pytest.mark.promise("H2")
def test_the_faults_are_listed_without_a_job(weir: Any) -> None:
    run = weir("drill", "--faults")
    assert run.exit_code == 0 and all(name in run.output for name in CATALOGUE)


@pytest.mark.promise("H2")
def test_all_faults_are_a_drill_each_and_the_worst_verdict_counts(
    weir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = drilled(tmp_path)
    asked: list[tuple[list[str], int]] = []

    def run_drill(*_: Any, faults: list[str], seed: int, **__: Any) -> DrillResult:
        asked.append((faults, seed))
        if faults == ["jvm-hung"]:
            raise DrillFailed("no verdict: the JVM went on")
        return seen

    monkeypatch.setattr(cli, "run_drill", run_drill)
    run = weir("drill", "pageviews", "--store", str(tmp_path), "--fault", "all", "--seed", "5", "--no-audit")
    assert asked == [([name], 5) for name in CATALOGUE]
    assert run.exit_code == 2 and "no verdict: the JVM went on" in run.output and "recovered in 1.2 s" in run.output
    red = msgspec.structs.replace(seen, reader_violations=["read 7 saw part of epoch 3"])
    seen = red
    assert weir("drill", "pageviews", "--store", str(tmp_path), "--fault", "all", "--no-audit").exit_code == 1


@pytest.mark.promise("H2")
def test_a_series_has_a_seed_for_each_drill_a_table_of_all_and_a_report(
    weir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def run_drill(*_: Any, seed: int, **__: Any) -> DrillResult:
        seeds.append(seed)
        if seed == 7:
            raise DrillFailed("no verdict: nobody reached it")
        return drilled(tmp_path, str(seed))

    monkeypatch.setattr(cli, "run_drill", run_drill)
    monkeypatch.setattr(cli, "run_audit", lambda *_, **__: audited(Verdict.PASSED))
    run = weir("drill", "pageviews", "--store", str(tmp_path), "--fault", "random", "--times", "3", "--seed", "5")
    assert seeds == [5, 6, 7] and run.exit_code == 2
    said = " ".join(run.output.split())  # the caption is as wide as its table
    assert "3 drills, 2 faults" in said and "lost 6" in said and "no verdict 1" in said
    kept = read_records(tmp_path, "pageviews")
    assert [record.seed for record in kept] == [0, 0, 7]
    assert kept[-1].faults == [choose(["random"], 7)[0].name], "what it would have been"
    shown = weir("drill", "pageviews", "--store", str(tmp_path), "--report")
    assert shown.exit_code == 0 and "3 drills, 2 faults" in shown.output and "slot-killed" in shown.output
    assert "no verdict: nobody reached it" in (tmp_path / "drills" / "pageviews" / "report.html").read_text()


@pytest.mark.promise("H2")
def test_a_drill_of_the_live_job_strikes_once_and_only_a_job_that_is_there(weir: Any, tmp_path: Path) -> None:
    said = {
        ("--times", "2"): "leave out --fault all, --times and --records",
        ("--fault", "all"): "leave out --fault all, --times and --records",
        (): "pageviews",
    }
    for options, expected in said.items():
        run = weir("drill", "pageviews", "--live", "--no-audit", "--store", str(tmp_path), *options)
        assert isinstance(run.exception, WeirError) and expected in str(run.exception), options
    assert read_records(tmp_path, "pageviews") == [], "nothing was drilled"


@pytest.mark.promise("H2", "H4")
@pytest.mark.parametrize(("found", "code"), [(Verdict.PASSED, 0), (Verdict.FAILED, 1), (Verdict.COULD_NOT_RUN, 2)])
def test_the_verdict_of_a_live_drill_is_that_of_the_audit_of_live_tables(
    found: Verdict, code: int, weir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "audits" / "pageviews" / "1" / "data_docs" / "index.html"
    page.parent.mkdir(parents=True)
    page.touch()
    audit = msgspec.structs.replace(audited(Verdict.PASSED, found), data_docs=str(page))
    done = LiveDrill(drilled(tmp_path, "live-1"), audit)
    monkeypatch.setattr(cli, "known_jobs", lambda _: ["pageviews"])
    monkeypatch.setattr(cli, "run_live_drill", lambda *_, **__: done)
    run = weir("drill", "pageviews", "--live", "--store", str(tmp_path))
    assert run.exit_code == code and "drill of the live job pageviews" in run.output
    (record,) = read_records(tmp_path, "pageviews")
    assert record.live and record.verdict is found
    report = (tmp_path / "drills" / "pageviews" / "report.html").read_text()
    assert 'href="../../audits/pageviews/1/data_docs/index.html"' in report


@pytest.mark.promise("H2")
def test_a_live_drill_without_a_verdict_is_kept_as_one(
    weir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impossible(*_: Any, **__: Any) -> LiveDrill:
        raise DrillFailed("no verdict: slot 0 had ended by itself")

    monkeypatch.setattr(cli, "known_jobs", lambda _: ["pageviews"])
    monkeypatch.setattr(cli, "run_live_drill", impossible)
    assert weir("drill", "pageviews", "--live", "--store", str(tmp_path)).exit_code == 2
    (record,) = read_records(tmp_path, "pageviews")
    assert record.live and record.verdict is Verdict.COULD_NOT_RUN and record.faults == ["slot-killed"]


@pytest.mark.promise("H2")
def test_an_unknown_fault_is_said_before_anything_runs(weir: Any, tmp_path: Path) -> None:
    run = weir("drill", "pageviews", "--store", str(tmp_path), "--fault", "slot-eaten", "--no-audit")
    assert isinstance(run.exception, WeirError) and "there is no fault 'slot-eaten'" in str(run.exception)
    both = weir("drill", "pageviews", "--store", str(tmp_path), "--fault", "all", "--fault", "slot-killed")
    assert isinstance(both.exception, WeirError) and "name no other beside it" in str(both.exception)


def test_fewer_than_100_000_records_are_no_drill(weir: Any, tmp_path: Path) -> None:
    assert weir("drill", "pageviews", "--store", str(tmp_path), "--records", "99999").exit_code == 2
