"""Goal: every example of the guide runs, and says what is true.

The Python code of a page is one program; its assertions are the claims of the page. The commands of a page are those of
`weir`, with options that exist.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.api import StreamEnvironment
from engine.cli.new import write_job
from engine.connectors.table import TableSink
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.rewind import go_back
from engine.testing import JobFailed, run
from tests.pages import blocks, check_commands, commands, run_page

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "guide"
PAGES = sorted(GUIDE.glob("*.md"))
PROSE_ONLY = {"README.md"}
"""Pages without Python code."""
OPTION = {True: "--rewind", False: "--allow-replay"}


def page_id(page: Path) -> str:
    return page.name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of one's own, in which `weir new orders` was called; modules are found there."""
    write_job("orders", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "orders"]:
        del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_python_code_of_a_page_runs_and_its_assertions_hold(page: Path, folder: Path) -> None:
    ran = run_page(page, {"__name__": "__guide__"})
    assert (ran == 0) == (page.name in PROSE_ONLY)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_commands_of_a_page_are_those_of_weir(page: Path) -> None:
    check_commands(commands(page))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_a_page_is_short_linked_and_all_of_its_examples_are_of_a_language_that_is_checked(page: Path) -> None:
    prose = re.sub(r"^```diff\n.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(prose.splitlines()) <= 150
    assert {language for language, _, _ in blocks(page)} <= {"python", "sh", "text", "diff"}
    if page.name != "README.md":
        assert f"({page.name})" in (GUIDE / "README.md").read_text()


@pytest.mark.parametrize(("hide", "first", "last"), [(True, [1, 2], [1, 2, 3, 4]), (False, [1, 2, 3], [1, 2, 3, 3, 4])])
def test_rewind_and_allow_replay_do_what_the_table_of_the_page_on_going_back_says(
    hide: bool, first: list[int], last: list[int], folder: Path
) -> None:
    known: dict[str, Any] = {}
    (line, text) = next(
        (line, text) for language, line, text in blocks(GUIDE / "going-back.md") if language == "python"
    )
    exec(compile(text, f"going-back.md, line {line}", "exec"), known)
    stopped = known["stopped"]
    log = EpochLog(stopped.store, stopped.paths)
    record = log.last()
    assert record is not None and record.newest is not None
    stopped.store.write(record.newest.path, b"cut")
    with pytest.raises(JobFailed):
        run(known["job"], after=stopped)
    committers = {"out": TableSink("numbers").committer(stopped.store, stopped.paths)}
    assert go_back(log, committers, lambda sink: None, "cli", lambda: None, hide=hide)[0] == 2
    row = next(
        row for row in (GUIDE / "going-back.md").read_text().splitlines() if row.startswith(f"| `{OPTION[hide]}` | 1")
    )
    assert [cell.strip() for cell in row.split("|")[2:4]] == [", ".join(map(str, rows)) for rows in (first, last)]
    assert [row["n"] for row in stopped.rows("numbers")] == first
    assert [row["n"] for row in run(known["job"], after=stopped).rows("numbers")] == last


def test_the_page_on_checkpointing_has_every_option_of_enable_checkpointing() -> None:
    text = (GUIDE / "checkpointing.md").read_text()
    listed = re.findall(r"^\| `(\w+)`", text, re.MULTILINE)
    options = [name for name in inspect.signature(StreamEnvironment.enable_checkpointing).parameters if name != "self"]
    assert listed == options
