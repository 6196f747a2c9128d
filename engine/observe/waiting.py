"""`LookedAfter` ends the wait for a job that nobody runs any more: all of its processes may be killed at any moment."""

from __future__ import annotations

import time

from engine.core.errors import Ending, NotRunning, Slow
from engine.host.run_folder import RunFolder

UNSEEN_S = 15.0
"""A job that nobody is seen to look after for so long has lost its processes: supervisors give a sign every second."""
FIRST_SIGN_S = 60.0
"""A supervisor that was just started gives its first sign within this time."""


class LookedAfter:
    """Whoever waits for a job tells it what each question to the JobMaster came to. It never waits itself."""

    def __init__(self, folder: RunFolder, job: str, patience_s: float) -> None:
        self._folder = folder
        self._job = job
        self._sign = folder.read_supervisor()
        self._until_s = time.monotonic() + patience_s

    def on_answer(self) -> None:
        self._until_s = max(self._until_s, time.monotonic() + UNSEEN_S)

    def on_silence(self, error: NotRunning) -> None:
        """No JobMaster answers. Raises an error if nobody has looked after the job for long and it left no outcome."""
        before, self._sign = self._sign, self._folder.read_supervisor()
        if isinstance(error, Ending | Slow) or self._sign != before:
            self.on_answer()
        elif time.monotonic() >= self._until_s and self._folder.read_exit() is None:
            raise NotRunning(
                f"nobody runs job {self._job!r} any more: its JobMaster and its supervisor were killed; "
                f"`weir resume {self._job}` starts it again"
            ) from error
