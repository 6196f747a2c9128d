"""Goal: `weir run` and `weir submit` start a job with the same flags, and each of them reaches the launch options."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from engine.cli.launching import GoBack, finish, launching, prepare
from engine.cli.main import app
from engine.core.errors import WeirError
from engine.host.launch import LaunchOptions, MasterLaunch
from engine.host.run_folder import MasterExit
from engine.process.submit import FromSnapshot

Call = tuple[LaunchOptions, str, GoBack]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration file, and no store, but this test's own."""
    monkeypatch.chdir(tmp_path)
    for name in ("WEIR_CONFIG", "WEIR_STORE"):
        monkeypatch.delenv(name, raising=False)


def called(*arguments: str) -> Call:
    """Calls a command that has the flags of a start; returns what it was called with."""
    calls: list[Call] = []
    commands = typer.Typer()

    @commands.command()
    @launching
    def start(options: LaunchOptions, store: str, back: GoBack) -> None:
        calls.append((options, store, back))

    CliRunner().invoke(commands, list(arguments), catch_exceptions=False)
    (call,) = calls
    return call


def test_a_start_without_flags_has_the_defaults_of_the_struct() -> None:
    assert called("a.b:c") == (LaunchOptions(path="a.b:c"), ".weir", GoBack(False, None, False))


def test_every_flag_reaches_the_launch_options() -> None:
    flags = "--store s --param x=1 --param y=a=b --parallelism 3 --name n --max-slots 5 --slots-timeout 7 --fork other"
    spark = "--master spark://h:1 --conf spark.a=1 --py-files one.zip --py-files two.zip --slot-memory 100"
    limits = "--allow-shared-store --heartbeat-timeout 20 --slow-step 3 --step-timeout 40"
    options, store, back = called("a.b:c", *flags.split(), *spark.split(), *limits.split())
    assert options == LaunchOptions(
        path="a.b:c",
        name="n",
        params={"x": "1", "y": "a=b"},
        parallelism=3,
        max_slots=5,
        slots_timeout_s=7.0,
        heartbeat_timeout_s=20.0,
        slow_step_s=3.0,
        step_timeout_s=40.0,
        spark_master="spark://h:1",
        conf={"spark.a": "1"},
        py_files=["one.zip", "two.zip"],
        slot_memory_mb=100,
        allow_shared_store=True,
    )
    assert store == "s" and back == GoBack(rewind=False, fork_name="other", allow_replay=False)
    assert called("a.b:c", "--rewind", "--allow-replay")[2] == GoBack(True, None, True)


def test_run_and_submit_have_the_same_flags() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    run, submit = ([(p.opts, p.default, p.help) for p in commands[name].params] for name in ("run", "submit"))
    assert run == submit and len(run) == 22


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--param", "x"], "--param 'x': write NAME=VALUE"),
        (["--conf", "=1"], "--conf '=1': write NAME=VALUE"),
        (["--conf", "spark.a.secret=env:NOT_SET_HERE"], "--conf spark.a.secret=env:NOT_SET_HERE: the environment var"),
        (["--master", "foo"], "--master 'foo' is no Spark master: write local[N], local-cluster[N,CORES,MB], spark://"),
        (["--conf", "spark.speculation=true"], "--conf spark.speculation=true would break slots: Weir sets false"),
        (["--rewind", "--allow-replay"], "choose one of --from, --rewind, --fork and --allow-replay"),
        (
            ["--py-files", "no.zip"],
            "--py-files no.zip: there is no such file; `weir package tests.cluster.jobs",
        ),
    ],
)
def test_a_wrong_flag_is_one_clear_error(flags: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["submit", "tests.cluster.jobs:windows", *flags])
    assert isinstance(result.exception, WeirError) and str(result.exception).startswith(says)


def test_a_secret_that_is_written_out_is_warned_about_and_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--conf", "spark.a.secret=hush", "--py-files", "no.zip"]
    with pytest.raises(WeirError, match=r"no\.zip"):
        prepare(*called("tests.cluster.jobs:windows", *flags))
    warned = capsys.readouterr().err
    assert "spark.a.secret looks like a secret" in warned and "spark.a.secret=env:VARIABLE" in warned
    assert "hush" not in warned


@pytest.mark.parametrize(("outcome", "code"), [("failed", 1), ("fenced", 1), ("finished", 0), ("cancelled", 0)])
def test_a_job_that_failed_or_was_replaced_ends_the_command_with_an_error(outcome: str, code: int) -> None:
    launch = MasterLaunch(path="a.b:c", name="n", store=".weir", max_slots=4)
    commands = typer.Typer()
    commands.command()(lambda: finish(MasterExit(outcome, "why"), launch))
    assert CliRunner().invoke(commands, []).exit_code == code


@pytest.mark.parametrize(
    ("flag", "chosen"), [("--rewind", FromSnapshot.REWIND), ("--allow-replay", FromSnapshot.ALLOW_REPLAY)]
)
def test_each_way_to_go_back_is_the_one_that_was_asked_for(
    flag: str, chosen: FromSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = MasterLaunch(path="a.b:c", name="n", store=".weir", max_slots=4)
    choices: list[FromSnapshot] = []
    monkeypatch.setattr("engine.cli.launching.plan_launch", lambda options, store: launch)
    monkeypatch.setattr(
        "engine.cli.launching.choose_snapshot", lambda launch, choice: choices.append(choice) or "goes back"
    )
    assert prepare(*called("a.b:c", flag)) == launch and choices == [chosen]
