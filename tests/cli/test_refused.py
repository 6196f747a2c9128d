"""What is wrong before a job starts is one clear error and a non-zero exit."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    ],
)
def test_what_is_wrong_before_the_start_is_one_clear_error(arguments: list[str], says: str, tmp_path: Path) -> None:
    result = weir(*arguments, store=tmp_path)
    assert result.returncode == 1
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.count("error:") == 1
