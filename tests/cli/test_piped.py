"""Goal: what a script or a file gets of `weir` is whole: no cut cells, no broken lines, no frames."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster.actions import Outcome
from tests.cli.command import WEIR
from tests.observe.answering import NAME, AnsweringRun

REASON = "something happened to this job " * 8


@pytest.fixture
def store(tmp_path: Path) -> Path:
    run = AnsweringRun(tmp_path)
    run.run()
    RunFolder(tmp_path, NAME).write_exit(MasterExit(Outcome.FAILED, REASON), run.launch)
    return tmp_path


def piped(store: Path, *arguments: str, **environ: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    command = [*WEIR, *arguments, "--store", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, env=kept | environ, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_table_in_a_pipe_is_a_line_per_row_however_wide(store: Path) -> None:
    lines = piped(store, "checkpoints", NAME).splitlines()
    assert len(lines) == 4 and all("…" not in line and "epoch" in line for line in lines[1:])
    shown = piped(store, "jobs")
    assert max(map(len, shown.splitlines())) > 200 and REASON.strip() in shown and "…" not in shown


def test_the_variable_columns_still_decides(store: Path) -> None:
    assert max(map(len, piped(store, "jobs", COLUMNS="80").splitlines())) <= 80
