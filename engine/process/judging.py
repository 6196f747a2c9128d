"""Finds what compares the output of two versions after a rehearsal: `checks`, by its entry point.

The engine imports neither that package nor Great Expectations.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Protocol

from engine.core.errors import WeirError
from engine.host.launch import MasterLaunch
from engine.observe.client import JobClient
from engine.process.rehearsing import Say


class Judged(Protocol):
    """What a rehearsal has found."""

    @property
    def word(self) -> str:
        """The verdict: passed, failed, or could not run."""

    def fields(self) -> dict[str, Any]:
        """Returns the result as JSON has it."""

    def show(self, as_json: bool) -> int:
        """Prints the result. Returns the exit code."""


Judge = Callable[[JobClient, MasterLaunch, int, Say], Judged]
"""Rehearses a start for so many checkpoints, and compares what it wrote. Raises RehearsalFailed."""


def find_judge() -> Judge:
    for entry in entry_points(group="weir.rehearsals"):
        judge: Judge = entry.load()
        return judge
    raise WeirError("rehearsals need the checks of Weir, which are not installed: pip install -e . in its folder")
