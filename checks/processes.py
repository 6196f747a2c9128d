"""The processes of a job by what they are, on Linux. Each inherits a mark in its environment.

So none can hide, not even one whose parents are dead: a drill finds its victims, and leaves no process behind.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_STATE, _PARENT, _SESSION, _START = 0, 1, 3, 19
"""The places of these fields in /proc/PID/stat, counted behind the name."""
_DEAD = ("Z", "X")


class Role(Enum):
    """What a blow strikes: a process of the job, or what several of them use."""

    SLOT = "slot"
    DAEMON = "daemon of the slots"
    JVM = "driver's JVM"
    MASTER = "JobMaster"
    SUPERVISOR = "supervisor"
    STORE = "store"
    CHANNELS = "channels between slots"


PROCESSES = (Role.SLOT, Role.DAEMON, Role.JVM, Role.MASTER, Role.SUPERVISOR)


@dataclass(frozen=True)
class Process:
    """A process of this machine. `start` tells it from a later one of the same pid."""

    pid: int
    start: str

    @property
    def state(self) -> str:
        """Returns the kernel's letter for its state, such as `T` if it is stopped; empty if it has ended."""
        fields = _stat(self.pid)
        return fields[_STATE] if fields and fields[_START] == self.start and fields[_STATE] not in _DEAD else ""

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal. Returns False if the process has ended."""
        if not self.state:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def limit_files(self, limited: bool) -> bool:
        """Lets each write to a file fail, as on a full disk, or lets them succeed again. False if it has ended."""
        if not self.state:
            return False
        try:
            hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (0 if limited else hard, hard))
        except ProcessLookupError:
            return False
        return True


def process(pid: int) -> Process | None:
    """Returns the process of this pid, None if it has ended."""
    fields = _stat(pid)
    return Process(pid, fields[_START]) if fields and fields[_STATE] not in _DEAD else None


class JobProcesses:
    """The processes that were started while `marking`, and all that they have started since."""

    VARIABLE = "WEIR_MARK"

    def __init__(self, **variables: str) -> None:
        """`variables`: what the processes shall also have in their environment."""
        self._mark = secrets.token_hex(8)
        self._variables = {**variables, self.VARIABLE: self._mark}

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """What this process starts meanwhile is marked."""
        before = {name: os.environ.get(name) for name in self._variables}
        os.environ.update(self._variables)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value

    def all(self) -> list[Process]:
        sought = f"{self.VARIABLE}={self._mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = sought in (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended meanwhile, or is another user's
            if marked and int(folder.name) != os.getpid() and (one := process(int(folder.name))) is not None:
                found.append(one)
        return sorted(found, key=lambda one: one.pid)

    def slot(self, pid: int) -> Process | None:
        """Returns the process of a slot; None if it has ended."""
        return process(pid)

    def of(self, role: Role) -> list[Process]:
        return [one for one in self.all() if role_of(one.pid) is role]

    def end(self, patience_s: float = 20.0) -> list[int]:
        """Waits until no process is left; kills those that stay longer, and returns them."""
        deadline = time.monotonic() + patience_s
        while left := self.all():
            if time.monotonic() > deadline:
                for one in left:
                    one.send(signal.SIGKILL)
                return [one.pid for one in left]
            time.sleep(0.1)
        return []


def role_of(pid: int) -> Role | None:
    """Says what a process of a job is; None if it is none of these, or has ended."""
    command = command_of(pid)
    if command and Path(command[0]).name == "java":
        return Role.JVM
    if "engine.process.supervisor" in command:
        return Role.SUPERVISOR
    if "engine.process.master_main" in command:
        return Role.MASTER
    if "engine.spark.worker_daemon" in command:
        parent = command_of(parent_of(pid))
        return Role.DAEMON if parent and Path(parent[0]).name == "java" else Role.SLOT
    return None


def parent_of(pid: int) -> int:
    """Returns the parent of a process; 0 if it has ended."""
    return int((_stat(pid) or ["", "0"])[_PARENT])


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def session_processes(session: int) -> list[int]:
    """Returns the processes whose session leader is or was this one, without zombies; none if there is no /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(folder.name))
        if fields and int(fields[_SESSION]) == session and fields[_STATE] != "Z" and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def end_session(session: int, patience_s: float = 20.0) -> list[int]:
    """Waits until the session is empty; kills the processes that stay longer, and returns them."""
    deadline = time.monotonic() + patience_s
    while left := session_processes(session):
        if time.monotonic() > deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return left
        time.sleep(0.1)
    return []


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
