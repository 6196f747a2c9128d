"""The terminal of `weir run`, without Spark: records of print sinks, whatever else there is in the logs."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from engine.api import StreamEnvironment
from engine.cli.foreground import Printed, watch
from engine.core.errors import WeirError
from engine.host.run_folder import MasterExit
from engine.jobmaster.actions import Outcome
from engine.observe.logs import LogWriter
from engine.runtime.running import RUNNING
from tests.graph.test_graph import source, translate

FINISHED = MasterExit(Outcome.FINISHED, "all of its input is read")


def says(log: LogWriter, uid: str, text: str) -> None:
    """As code of this operator would."""
    context: Any = SimpleNamespace(uid=uid, subtask=SimpleNamespace(index=0))
    token = RUNNING.set(context)
    log.write(text)
    RUNNING.reset(token)


class Starting:
    """A JobMaster that does not answer yet."""

    def status(self) -> dict[str, Any]:
        raise WeirError("not yet")


@pytest.mark.promise("A1")
@pytest.mark.parametrize("terminal", [True, False])
def test_records_of_print_sinks_are_shown_once_as_they_are_and_nothing_else(tmp_path: Path, terminal: bool) -> None:
    env = StreamEnvironment(parallelism=2)
    source(env).map(lambda row: row).print(uid="shown")
    slots = [LogWriter(tmp_path, f"slot-{number}") for number in range(2)]
    says(slots[0], "shown", "0> of an earlier run")
    printed = Printed(tmp_path, translate(env))
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=40, color_system=None)

    def poll() -> MasterExit | None:
        """Two looks: each slot has printed before one of them, the second with the last breath of its job."""
        number = polls.pop(0)
        says(slots[number], "map-1", "what a function prints")
        says(slots[number], "shown", f"{number}> {{'text': '[red] {'x' * 50}'}}")
        return FINISHED if not polls else None

    polls = [0, 1]
    assert watch(console, Starting(), poll, printed) == FINISHED  # type: ignore[arg-type]
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue()))
    assert [line for line in lines if "> " in line] == [f"{n}> {{'text': '[red] {'x' * 50}'}}" for n in range(2)]
    assert "a function" not in out.getvalue() and "starting Spark" in out.getvalue()
