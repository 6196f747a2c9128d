"""One JobMaster process and its lifeline, as its supervisor sees it: the JobMaster of a job, or its standby."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.host.lifeline import Listener, Sign
from engine.host.run_folder import MasterExit
from engine.host.takeover import give_order
from engine.protocol.remedy import Death

STANDBY = "standby"
"""The last argument of a JobMaster process that is a standby."""


class MasterChild:
    """Starts the process. Its output goes to the end of `log`."""

    def __init__(self, arguments: Sequence[str], log: Path, *, standby: bool = False) -> None:
        self.words: Death | None = None
        """The last words, if it said any."""
        self.outcome: MasterExit | None = None
        """How the job ended, if it said so."""
        self._listener = Listener()
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "engine.process.master_main", *arguments, *([STANDBY] if standby else [])],
                    stdin=subprocess.PIPE if standby else subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._listener.environ,
                    pass_fds=[self._listener.descriptor],
                    start_new_session=True,  # Ctrl-C goes to the supervisor alone, which cancels the job
                )
        except OSError:
            self._listener.close()
            raise
        finally:
            self._listener.started()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Says whether the process has ended, and leaves it unreaped: its number still names its process group."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # it was reaped
            return True

    def heard(self) -> list[Sign]:
        """Returns its signs of life since the last call."""
        signs = self._listener.heard()
        for sign in signs:
            self.words = sign.words or self.words
            self.outcome = sign.ended or self.outcome
        return signs

    def take_over(self) -> None:
        """Tells a standby to take over. If it still starts, it does so as soon as it can."""
        give_order(self._process)

    def terminate(self) -> None:
        if not self.ended:
            self._process.terminate()

    def wait(self, patience_s: float) -> bool:
        """Waits until the process has ended. Returns False if it has not."""
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> int:
        """Ends what is left of the process: Spark's JVM in its group, too, even if it is stopped. Returns its code.

        What it said before can still be heard until `close`.
        """
        if self._process.returncode is None:
            self._process.kill()
            # The process is not reaped yet, so its number still names its group. The JVM deletes its files and ends.
            for number in (signal.SIGTERM, signal.SIGCONT):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)
        return self._process.wait()

    def close(self) -> None:
        self._listener.close()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
