"""A job that can't be built is refused with its author's line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.core.errors import JobError
from engine.host.launch import LaunchOptions
from engine.process.loading import load
from engine.protocol.failures import Fault

HEAD = """from engine.api import StreamEnvironment
from engine.connectors.table import TableSink

def job(env):
    rows = env.from_elements([{"a": 1}], "a long")
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], LaunchOptions]:
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> LaunchOptions:
        (tmp_path / "broken_job.py").write_text(text)
        monkeypatch.delitem(sys.modules, "broken_job", raising=False)
        return LaunchOptions(path="broken_job:job", name="broken")

    return write


@pytest.mark.promise("H8")
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("    rows.select(b='c').print()", "(broken_job.py, line 6)"),
        ("    rows.key_by('b')", "(broken_job.py, line 6)"),
        ("    rows.print(uid='a'); rows.print(uid='a')", "(the first: broken_job.py, line 6)"),
        ("    rows.filter(bool)", "(broken_job.py, line 6): end the stream"),
        ("    1 / 0", "ZeroDivisionError: division by zero (broken_job.py, line 6)"),
        ("    import sys; sys.exit(3)", "SystemExit: 3 (broken_job.py, line 6)"),
    ],
)
def test_an_error_while_a_job_is_built_names_the_author_s_line(
    written: Callable[[str], LaunchOptions], line: str, says: str
) -> None:
    with pytest.raises(JobError) as caught:
        load(written(HEAD + line + "\n"))
    assert says in str(caught.value) and caught.value.fault is Fault.JOB


@pytest.mark.promise("H8")
@pytest.mark.parametrize("line", ["import sys; sys.exit(1)", "None.missing", "def job(:"])
def test_a_module_that_raises_exits_or_does_not_parse_is_the_job_s_fault(
    written: Callable[[str], LaunchOptions], line: str
) -> None:
    with pytest.raises(JobError, match="broken_job can't be imported"):
        load(written(line + "\n"))


@pytest.mark.promise("H8")
@pytest.mark.parametrize("text", ["open('/nowhere/at/all')\n", HEAD + "    raise OSError(5, 'Input/output error')\n"])
def test_an_error_of_the_operating_system_while_a_job_is_loaded_comes_from_outside(
    written: Callable[[str], LaunchOptions], text: str
) -> None:
    with pytest.raises(JobError) as caught:
        load(written(text))
    assert caught.value.fault is Fault.OUTSIDE and "broken_job.py, line" in str(caught.value)
