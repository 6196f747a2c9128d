"""Runs a command that gets SIGTERM when its parent dies, even by SIGKILL: `python -m orchestration.tied PID COMMAND …`.

A daemon that outlived `make ui` would go on running schedules beside the daemon of the next one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):  # it died before that
            raise SystemExit("the process that started this one is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
