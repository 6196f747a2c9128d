"""What is wrong before a job starts is one clear error and a non-zero exit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.cli.main import app, main, unwrap_help
from engine.observe.client import JobClient
from tests.cli.command import weir


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "tests.cluster.nowhere:job"], "there is no module 'tests.cluster.nowhere'"),
        (["run", "tests.cluster.jobs:nothing"], "has no 'nothing'; it has the functions"),
        (["run", "tests.cluster.jobs"], "write MODULE:FUNCTION"),
        (["run", "tests.cluster.jobs:raises_while_built"], "raised while it was being built: RuntimeError: no config"),
        (
            ["run", "tests.cluster.jobs:windows", "--param", "speed=3"],
            "the job has no parameter speed; it has: rate, rows",
        ),
        (["run", "tests.cluster.jobs:windows", "--param", "rate=fast"], "parameter rate='fast' is not of type int"),
        (["run", "tests.cluster.jobs:windows", "--parallelism", "9"], "too few slots: the job needs 9"),
        (["status", "nosuchjob"], "there is no job 'nosuchjob'"),
        (["status", "nosuchjob", "--store", "/nowhere/x"], "the store /nowhere/x does not exist; name another with"),
        (["gc", "nosuchjob", "--store", "/nowhere/x"], "the store /nowhere/x does not exist; name another with"),
        (["run", "tests.cluster.jobs:windows", "--name", "../outside"], "'../outside' can't be the name of a job"),
        (["cancel", "a/b"], "'a/b' can't be the name of a job"),
        (["run", "tests.cluster.jobs:windows", "--store", "/proc/weir"], "can't be written"),
        (["run", "tests.cluster.jobs:windows", "--store", __file__], "is a file: name a folder with --store or"),
    ],
)
def test_what_is_wrong_before_the_start_is_one_clear_error(arguments: list[str], says: str, tmp_path: Path) -> None:
    result = weir(*arguments, store=tmp_path)
    assert result.returncode == 1
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.count("error:") == 1


def said_by_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    """Runs `weir` in this process, which takes milliseconds; returns its exit code."""
    monkeypatch.setattr("sys.argv", ["weir", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["stauts"], "No such command 'stauts'. Did you mean 'status', 'state', 'restarts'?\n`weir --help` lists"),
        (["status", "x", "--jsn"], "No such option: --jsn (Possible options: --json)\n`weir status --help` lists"),
        (["status"], "Missing argument 'JOB'.\n`weir status --help` lists"),
        (["upgrade", "x", "--rehearse"], "Option '--rehearse' requires an argument.\n`weir upgrade --help` lists"),
        (["--nothing"], "No such option: --nothing\n`weir --help` lists"),
        (["list"], "No such command 'list'. `weir jobs` lists the jobs of a store\n`weir --help` lists"),
        (["kill", "x"], "No such command 'kill'. `weir cancel JOB` ends a job at once; `weir stop JOB` ends it behind"),
        (["submit", "a:b", "--fromSavepoint", "x"], "--fromSavepoint. Here it is --from SAVEPOINT\n`weir submit"),
        (["submit", "a:b", "-s", "x"], "No such option: -s. Here it is --from SAVEPOINT\n`weir submit --help`"),
        (["run", "a:b", "-d"], "No such option: -d. `weir submit` starts a job in the background\n"),
        (["stop", "x", "--savepointPath", "/b"], "Here it is --savepoint, with --to FOLDER\n`weir stop --help`"),
        (["stop", "x", "-p", "/b"], "No such option: -p. Here it is --savepoint, with --to FOLDER\n"),
        (["rescale", "x", "2"], "(2). The number is an option: weir rescale JOB --parallelism N\n`weir rescale"),
        (["upgrade", "x", "a:b"], "(a:b). The new version is an option: weir upgrade JOB --to MODULE:FUNCTION\n"),
        (["stop", "x", "/b"], "(/b). The folder is an option: weir stop JOB --savepoint --to FOLDER\n"),
    ],
)
def test_a_wrong_command_option_or_argument_names_the_help_that_lists_the_right_ones(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said_by_main(monkeypatch, *arguments) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["savepoint", "delete"], "write weir savepoint JOB to take one, or weir savepoint delete JOB/NAME"),
        (["savepoint", "pv", "/backups"], "the folder is an option: weir savepoint pv --to /backups"),
        (["savepoint", "pv", "nightly"], "the name is an option: weir savepoint pv --name nightly"),
        (["savepoint", "dispose", "pv/a"], "to delete a savepoint, write weir savepoint delete pv/a"),
        (["savepoint", "delete", "pv", "--name", "nightly"], "weir savepoint delete takes no --name and no --to"),
        (["rehearsal", "nosuchjob"], "there is no job 'nosuchjob'"),
        (["savepoint", "pv", "--to", "s3:/lake/a"], "'s3:/lake/a' is no address of a folder: write a path, file:///"),
        (["stop", "pv", "--to", "s3:/lake/a"], "'s3:/lake/a' is no address of a folder: write a path, file:///"),
        (["savepoint", "delete", "s3:/lake/a"], "'s3:/lake/a' is no address of a folder: write a path, file:///"),
        (["jobs", "--store", "s3:/lake/a"], "'s3:/lake/a' is not the address of a store: write a directory, or s3://"),
    ],
)
def test_what_a_command_can_t_do_is_said_with_what_to_write_instead(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WEIR_STORE", str(tmp_path))
    assert said_by_main(monkeypatch, *arguments) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["stop", "x"], "interrupted: the job may still do what it was asked for; `weir status JOB` shows it\n"),
        (["status", "x"], ""),
    ],
)
def test_ctrl_c_says_what_goes_on_without_the_command(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(JobClient, "__init__", interrupted)
    assert said_by_main(monkeypatch, *arguments) == 130
    assert capsys.readouterr().err.endswith(says)


_INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
import weir
weir.main()
"""


def test_ctrl_c_while_the_command_is_being_loaded_prints_no_traceback() -> None:
    """Loading takes most of the time of a short command, so that is when people lose their patience."""
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_weir_alone_prints_its_help_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said_by_main(monkeypatch)
    alone = capsys.readouterr()
    assert "Usage: weir" in alone.out and alone.err == ""
    assert said_by_main(monkeypatch, "-h") == 0
    assert capsys.readouterr().out.strip() == alone.out.strip()


def test_paragraphs_of_help_are_wrapped_by_the_terminal_only() -> None:
    unwrap_help(app)
    texts = [command.help or "" for command in app.registered_commands]
    assert len(texts) > 20 and all("\n" not in text.replace("\n\n", "") for text in texts)
