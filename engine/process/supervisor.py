"""Keeps a JobMaster running: replaces one that dies by one of a higher generation, which goes on from the last epoch.

A JobMaster that ended on purpose leaves its `MasterExit` behind; anything else is a crash.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from engine.host.launch import MasterLaunch, read_launch
from engine.host.rotated import rotate_open
from engine.host.run_folder import FENCED_EXIT_CODE, MasterExit, RunFolder
from engine.jobmaster.actions import Outcome

CRASHES_IN_A_ROW = 3
BACK_OFF_S = 1.0
STOP_PATIENCE_S = 20.0
LOG_BYTES = 10 << 20
LOG_FILES = 3


class Supervisor:
    def __init__(self, launch: MasterLaunch, on_crash: Callable[[str], None]) -> None:
        self._launch = launch
        self._folder = RunFolder(launch.store, launch.name)
        self._on_crash = on_crash
        self._process: subprocess.Popen[bytes] | None = None
        self._crashes = 0
        self._records_seen = 0
        self._not_before_s = 0.0

    def start(self) -> None:
        self._folder.prepare()
        self._folder.clear()
        self._folder.write_launch(self._launch)
        self._start_process()

    def poll(self) -> MasterExit | None:
        """Replaces a JobMaster that crashed. Returns how the job ended once it has."""
        with contextlib.suppress(OSError):  # a log that can't be rotated must not end the job
            rotate_open(self._folder.log_file, LOG_BYTES, LOG_FILES)
        process = self._process
        if process is None:
            if time.monotonic() >= self._not_before_s:
                self._start_process()
            return None
        code = process.poll()
        if code is None:
            return None
        if code == FENCED_EXIT_CODE:
            return MasterExit(Outcome.FENCED, "another JobMaster runs this job")
        ended = self._folder.read_exit()
        if ended is not None:
            return ended
        records = len(list(Path(self._launch.store, self._launch.name, "log").glob("*.json")))
        # Each start adds a fence to the log, so only a second new record is an epoch: progress since the last crash.
        self._crashes = 1 if records > self._records_seen + 1 else self._crashes + 1
        self._records_seen = records
        what = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if self._crashes > CRASHES_IN_A_ROW:
            return MasterExit(
                Outcome.FAILED,
                f"the JobMaster died {self._crashes} times in a row ({what}); see {self._folder.log_file}",
            )
        self._on_crash(f"the JobMaster died ({what}); starting another")
        self._folder.clear()
        self._process = None
        self._not_before_s = time.monotonic() + BACK_OFF_S
        return None

    def stop(self) -> None:
        """Cancels the job, and kills a JobMaster that does not end by itself."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def master_pid(self) -> int | None:
        return self._process.pid if self._process else None

    def _start_process(self) -> None:
        with self._folder.log_file.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine.process.master_main", str(self._folder.launch_file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to the supervisor alone, which cancels the job
            )


def main() -> None:
    """Runs a supervisor in a process of its own, as `weir submit` starts it."""
    launch = read_launch(sys.argv[1])
    folder = RunFolder(launch.store, launch.name)

    def crashed(what: str) -> None:
        with folder.log_file.open("a") as output:
            output.write(what + "\n")

    supervisor = Supervisor(launch, crashed)

    def terminate(*_: object) -> None:
        supervisor.stop()
        os._exit(0)

    signal.signal(signal.SIGTERM, terminate)
    supervisor.start()
    while (ended := supervisor.poll()) is None:
        time.sleep(0.2)
    folder.write_exit(ended, launch)


if __name__ == "__main__":
    main()
