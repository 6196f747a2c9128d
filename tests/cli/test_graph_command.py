"""Goal: `weir graph` and `weir describe` show a job without running it; `weir.toml` is behind every option."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from engine.cli.main import app
from engine.core.errors import WeirError
from engine.host.launch import LaunchOptions
from engine.process.submit import plan_launch

JOB = "tests.cluster.jobs:windows"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No configuration file, and no store, but this test's own."""
    monkeypatch.chdir(tmp_path)
    for name in ("WEIR_CONFIG", "WEIR_STORE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def weir(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def configured(text: str) -> None:
    Path("weir.toml").write_text(text)


@pytest.mark.promise("A10")
def test_graph_shows_all_three_graphs_or_one_in_three_forms(tmp_path: Path) -> None:
    everything = weir("graph", JOB)
    assert everything.exit_code == 0
    titles = [line for line in everything.stdout.splitlines() if "Graph: " in line]
    assert [title.split(":")[0] for title in titles] == ["StreamGraph", "JobGraph", "ExecutionGraph"]
    one = weir("graph", JOB, "--level", "execution", "--parallelism", "3").stdout
    assert one.startswith("ExecutionGraph: ") and "in 3 slots" in one and "JobGraph" not in one
    assert weir("graph", JOB, "--format", "mermaid").stdout.startswith("flowchart LR\n")
    file = tmp_path / "job.svg"
    written = weir("graph", JOB, "--format", "svg", "-o", str(file))
    assert written.exit_code == 0 and "job.svg is written" in written.stdout
    assert ElementTree.fromstring(file.read_text()).tag.endswith("svg")
    nowhere = weir("graph", JOB, "-o", str(tmp_path / "no" / "job.txt"))
    assert isinstance(nowhere.exception, WeirError) and "choose another file with -o" in str(nowhere.exception)


def test_describe_shows_the_chains_and_their_exchanges() -> None:
    shown = weir("describe", JOB).stdout
    assert "JobGraph: 2 vertices" in shown and "└─ hash(" in shown and "4 subtasks in 2 slots" in shown


@pytest.mark.promise("A9")
def test_the_command_line_goes_before_the_configuration_file_and_that_before_the_default(tmp_path: Path) -> None:
    assert "in 2 slots" in weir("graph", JOB).stdout
    configured("[weir]\nparallelism = 3\nmax_slots = 5\nstore = 'data'\n")
    assert "in 3 slots" in weir("graph", JOB).stdout
    assert "in 4 slots" in weir("graph", JOB, "--parallelism", "4").stdout


@pytest.mark.promise("A9")
def test_the_file_s_parallelism_is_resolved_at_launch_for_the_jobmaster_and_every_slot(tmp_path: Path) -> None:
    configured("[weir]\nparallelism = 3\nmax_slots = 5\n")
    launch = plan_launch(LaunchOptions(path=JOB), tmp_path)
    assert (launch.parallelism, launch.max_slots) == (3, 5)
    assert plan_launch(LaunchOptions(path=JOB, parallelism=1, max_slots=2), tmp_path).parallelism == 1
    with pytest.raises(WeirError, match="too few slots: the job needs 6, Spark is given 5"):
        plan_launch(LaunchOptions(path=JOB, parallelism=6), tmp_path)


def test_the_store_is_the_option_s_then_the_environment_s_then_the_file_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"no jobs in {tmp_path / '.weir'}" in weir("jobs").stdout.replace("\n", "")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "weir.toml").write_text("[weir]\nstore = 'data'\n")
    monkeypatch.setenv("WEIR_CONFIG", str(tmp_path / "conf" / "weir.toml"))
    beside = tmp_path / "conf" / "data"
    assert f"no jobs in {beside}" in weir("jobs").stdout.replace("\n", ""), "beside the file"
    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "env"))
    assert f"no jobs in {tmp_path / 'env'}" in weir("jobs").stdout.replace("\n", "")
    said = weir("jobs", "--store", str(tmp_path / "opt")).stdout.replace("\n", "")
    assert f"no jobs in {tmp_path / 'opt'}" in said
    assert said.endswith(f"weir run assets.pageviews.job:job --store {tmp_path / 'opt'}"), "where it would be listed"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[weir]\nslots = 3\n",
            "weir.toml: 'slots' is not known; the table [weir] has the keys parallelism, store, max",
        ),
        ("parallelism = 3\n", "weir.toml: 'parallelism' is not known; the table [weir] has the keys"),
        ("weir = 3\n", "weir.toml: 'weir' is not known; the table [weir] has the keys"),
        ("[weir]\nparallelism = 0\n", "weir.toml, table [weir]: Expected `int` >= 1 - at `$.parallelism`"),
        ("[weir]\nstore = 3\n", "weir.toml, table [weir]: Expected `str | null`, got `int` - at `$.store`"),
        ("[weir\n", "the configuration file weir.toml can't be read: "),
    ],
)
def test_a_mistake_in_the_configuration_file_is_one_clear_error(text: str, says: str) -> None:
    configured(text)
    result = weir("jobs")
    assert isinstance(result.exception, WeirError) and str(result.exception).startswith(says)


def test_a_configuration_file_that_is_named_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_CONFIG", "nowhere.toml")
    result = weir("graph", JOB)
    assert isinstance(result.exception, WeirError)
    assert str(result.exception) == "WEIR_CONFIG names nowhere.toml, and there is no such file"
