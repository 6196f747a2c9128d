"""A job that can't be built is refused with its author's line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
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
        ("    rows.sink_to('t', uid='out')", "not 't' (broken_job.py, line 6)"),
        ("    rows.print(uid=1)", "uid=1: a uid is a text, as in uid='1' (broken_job.py, line 6)"),
        (
            "    rows.window()",
            "window needs key_by first, as in stream.key_by(COLUMN).window(...) (broken_job.py, line 6)",
        ),
        ("    eval('1 / 0')", "ZeroDivisionError: division by zero (broken_job.py, line 6)"),
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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def job(): pass", "broken_job:job: a job takes the environment: def job(env) (broken_job.py, line 1)"),
        (
            "def job(env, bound): pass",
            'def job(env); declare parameters in its body, as in bound = env.params.get("bound", 5',
        ),
        (
            "import nothing_of_that_name",
            f"'nothing_of_that_name', which is not installed for {sys.executable} (broken_job.py, line 1)",
        ),
        (
            "from tests.process.nothing import X\n",
            "broken_job can't be imported: it needs the module 'tests.process.nothing', which is not in the package "
            "'tests.process' (broken_job.py, line 1)",
        ),
        ("x = 1\ndef job(:", "SyntaxError: invalid syntax (broken_job.py, line 2)"),
        ("None.missing", "AttributeError: 'NoneType' object has no attribute 'missing' (broken_job.py, line 1)"),
    ],
)
def test_a_job_that_can_t_be_called_or_imported_says_why_and_where(
    written: Callable[[str], LaunchOptions], text: str, says: str
) -> None:
    with pytest.raises(JobError) as caught:
        load(written(text + "\n"))
    assert says in str(caught.value)
    assert "<frozen" not in str(caught.value) and "<string>" not in str(caught.value)


def test_an_error_in_a_module_shows_the_author_s_frames_only(
    written: Callable[[str], LaunchOptions],
) -> None:
    with pytest.raises(JobError) as caught:
        load(written("None.missing\n"))
    assert caught.value.raised is not None and "importlib" not in caught.value.raised.traceback


def test_an_argument_with_a_default_is_no_parameter(written: Callable[[str], LaunchOptions]) -> None:
    job = "def job(env, bound=5):\n    env.from_elements([], 'a long').print()\n"
    load(written(job))
    with pytest.raises(JobError, match=r'as in bound = env.params.get\("bound", 5, "what it means"\)'):
        load(msgspec.structs.replace(written(job), params={"bound": "7"}))


@pytest.mark.parametrize(
    "path", ["shop/windows.py:job", "./shop/windows.py:job", "shop/windows:job", "shop/windows.py"]
)
def test_a_file_is_told_its_module(path: str) -> None:
    with pytest.raises(JobError, match=f"{path!r} is a file: write its module, shop.windows:job"):
        load(LaunchOptions(path=path))


def test_a_job_without_checkpoints_says_what_that_means(written: Callable[[str], LaunchOptions]) -> None:
    graph = load(written(HEAD + "    rows.print()\n"))
    assert graph.no_checkpoints.startswith("no checkpoints: without env.enable_checkpointing(...) output is committed")
    assert not load(written(HEAD + "    rows.print()\n    env.enable_checkpointing('1 s')\n")).no_checkpoints


def test_a_syntax_error_shows_the_line_once_and_no_frames_of_python_s_import(
    written: Callable[[str], LaunchOptions],
) -> None:
    with pytest.raises(JobError) as caught:
        load(written("x = 1\ndef job(:\n"))
    assert str(caught.value).count("line 2") == 1
    found = caught.value.raised
    assert found is not None and "importlib" not in found.traceback
    assert found.traceback.startswith('  File "') and "    def job(:\n" in found.traceback
