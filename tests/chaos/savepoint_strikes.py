"""What savepoints are asked for, the calls at which a process stands, and the faults that come while it does."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from checks.processes import PROCESSES, Process, Role, process
from tests.chaos.gate import Call
from tests.chaos.savepoint_world import SavepointWorld
from tests.chaos.world import JOB

SHORT_S = 1.5
LONG_S = {Role.SLOT: 8.0, Role.DAEMON: 8.0, Role.JVM: 40.0, Role.MASTER: 45.0, Role.SUPERVISOR: 10.0}
"""Longer than the time-out of those who wait for this process. Nobody waits for a supervisor."""
STORE_S = 5.0


@dataclass(frozen=True)
class Moment:
    """A call before which a process stands. `role`: whose it is. `path`: `{name}` is the savepoint's name."""

    name: str
    role: Role
    kind: str
    path: str
    after: str = ""
    passing: int = 0

    def call(self, name: str) -> Call:
        any_name = "[^/]+" if name == "*" else re.escape(name)
        return Call(self.kind, self.path.replace("{name}", any_name), self.after.replace("{name}", name), self.passing)


_STATE = r"/savepoints/{name}/[^/]+/(?!manifest)[^/]+$"
_MANIFEST = Moment("manifest", Role.MASTER, "open", r"/savepoints/{name}/[^/]+/manifest\.json$")
_SEAL = Moment("seal", Role.MASTER, "link", r"/savepoints/{name}/[^/]+\.seal$")
_HEAD = Moment("head", Role.MASTER, "link", r"/savepoints/{name}/savepoint\.json$")
_RECORD = Moment("epoch's record", Role.MASTER, "link", r"/log/\d+\.json$", "savepoints/{name}/*/manifest.json")
_COMMIT = Moment(
    "commit of a table", Role.MASTER, "link", r"/_spark_metadata/[^/]+$", "savepoints/{name}/*/manifest.json"
)
_COPY = Moment("copying", Role.MASTER, "link", _STATE, passing=1)
RUNNING = (
    Moment("a slot's first file", Role.SLOT, "open", _STATE, passing=1),
    Moment("a slot's fsync", Role.SLOT, "fsync", _STATE),
    _MANIFEST,
    _SEAL,
    _HEAD,
)
STOPPING = (_COPY, _RECORD, _COMMIT, _SEAL, _HEAD)
IN_BUCKET = tuple(one for one in (*RUNNING, *STOPPING) if one.kind != "fsync" and not one.after)


@dataclass(frozen=True)
class Asked:
    """A command that makes a savepoint. `words`: `{name}` is the savepoint's name, `*` that of an upgrade."""

    kind: str
    words: tuple[str, ...]
    moments: tuple[Moment, ...]
    ends: bool = False
    drains: bool = False


SAVEPOINT = Asked("savepoint", ("savepoint", JOB, "--name", "{name}"), RUNNING)
STOP = Asked("stop --savepoint", ("stop", JOB, "--savepoint", "--name", "{name}"), STOPPING, ends=True)
DRAIN = Asked("stop --drain", ("stop", JOB, "--drain", "--name", "{name}"), STOPPING, ends=True, drains=True)
UPGRADE = Asked("upgrade", ("upgrade", JOB, "--param", "rate=310"), STOPPING)


@dataclass
class Struck:
    """What a strike has to do after the call has gone on, and what it has seen to be wrong."""

    heal: Callable[[], None] = lambda: None
    wrong: tuple[str, ...] = ()
    begun: bool = False
    """The strike itself has begun a job from the savepoint."""


@dataclass(frozen=True)
class Strike:
    kind: str
    go: Callable[[SavepointWorld, random.Random, int, str], Struck]
    """Gets the pid of the process that stands (0: not known), and the name of the savepoint."""
    where: str = "both"


def _victim(world: SavepointWorld, chance: random.Random, role: Role, standing: int) -> Process | None:
    """Returns the process that stands, if it has this role; else any."""
    found = world.of(role)
    return next((one for one in found if one.pid == standing), chance.choice(found) if found else None)


def kill(*roles: Role) -> Strike:
    def go(world: SavepointWorld, chance: random.Random, standing: int, name: str) -> Struck:
        for one in [_victim(world, chance, role, standing) for role in roles]:
            if one is not None:
                one.send(signal.SIGKILL)
        return Struck()

    return Strike(f"kill -9: {' and '.join(role.value for role in roles)}", go)


def stop(role: Role, how: str, lasts_s: float) -> Strike:
    def go(world: SavepointWorld, chance: random.Random, standing: int, name: str) -> Struck:
        victim = _victim(world, chance, role, standing)
        if victim is None:
            return Struck()
        victim.send(signal.SIGSTOP)

        def heal() -> None:
            time.sleep(lasts_s)
            victim.send(signal.SIGCONT)

        return Struck(heal)

    return Strike(f"SIGSTOP {how}: {role.value}", go)


def full() -> Strike:
    def go(world: SavepointWorld, chance: random.Random, standing: int, name: str) -> Struck:
        ballast = world.store / f"ballast-{chance.getrandbits(32)}"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"0" * 65536)

        def heal() -> None:
            time.sleep(STORE_S)
            ballast.unlink()

        return Struck(heal)

    return Strike(f"store full for {STORE_S:.0f} s", go, "directory")


def read_only() -> Strike:
    def go(world: SavepointWorld, chance: random.Random, standing: int, name: str) -> Struck:
        folder = str(world.store / JOB)
        subprocess.run(["mount", "--bind", "-o", "ro", folder, folder], check=True)

        def heal() -> None:
            time.sleep(STORE_S)
            subprocess.run(["umount", "-l", folder], check=True)

        return Struck(heal)

    return Strike(f"store read-only for {STORE_S:.0f} s", go, "directory")


def server_killed() -> Strike:
    def go(world: SavepointWorld, chance: random.Random, standing: int, name: str) -> Struck:
        world.server.send(signal.SIGKILL)

        def heal() -> None:
            time.sleep(STORE_S)
            world.server.restart()

        return Struck(heal)

    return Strike(f"kill -9: MinIO, back after {STORE_S:.0f} s", go, "bucket")


def server_stopped() -> Strike:
    def go(world: SavepointWorld, chance: random.Random, standing: int, name: str) -> Struck:
        world.server.send(signal.SIGSTOP)

        def heal() -> None:
            time.sleep(STORE_S)
            world.server.send(signal.SIGCONT)

        return Struck(heal)

    return Strike(f"SIGSTOP: MinIO for {STORE_S:.0f} s", go, "bucket")


def beside(kind: str, refused: bool, *words: str) -> Strike:
    """Runs a command while the process stands. `refused`: it has to end with an error, and name the reason."""

    def go(world: SavepointWorld, chance: random.Random, standing: int, name: str) -> Struck:
        said = world.weir(*(word.replace("{name}", name) for word in words), patience_s=60)
        wrong = [] if (said.code != 0) == refused else [f"weir {' '.join(words)} ended with {said.code}: {said.short}"]
        if "Traceback" in said.text or said.code == 999:
            wrong.append(f"weir {' '.join(words)}: {said.text[-600:]}")
        return Struck(wrong=tuple(wrong))

    return Strike(f"beside it: {kind}", go)


def kill_command() -> Strike:
    """`go` finds the command by what it was started with: the newest one of this world."""

    def go(world: SavepointWorld, chance: random.Random, standing: int, name: str) -> Struck:
        for one in world.processes():
            command = Path(f"/proc/{one.pid}/cmdline").read_bytes().decode().split("\0")
            if any(Path(word).name == "weir" for word in command[:2]) and (found := process(one.pid)) is not None:
                found.send(signal.SIGKILL)
        return Struck()

    return Strike("kill -9: the command that asked", go)


_SAME = ("savepoint", JOB, "--name", "{name}")
_CLAIM = ("submit", "tests.chaos.job:chaos", "--name", "early", "--from", f"{JOB}/{{name}}", "--claim")
STRIKES = (
    *(kill(role) for role in PROCESSES),
    kill(Role.MASTER, Role.SUPERVISOR),
    *(stop(role, "for a moment", SHORT_S) for role in (Role.SLOT, Role.JVM, Role.MASTER, Role.SUPERVISOR)),
    *(stop(role, "for too long", LONG_S[role]) for role in (Role.SLOT, Role.MASTER, Role.SUPERVISOR)),
    full(),
    read_only(),
    server_killed(),
    server_stopped(),
    beside("weir gc", False, "gc", JOB),
    beside("weir savepoint delete", True, "savepoint", "delete", f"{JOB}/{{name}}"),
    beside("weir cancel", False, "cancel", JOB),
    beside("a second savepoint of the name", True, *_SAME),
    beside("weir submit --from --claim", True, *_CLAIM),
    kill_command(),
)


def strikes_for(asked: Asked, bucket: bool) -> list[Strike]:
    """Returns what can be done to this command: an upgrade's savepoint has no name that is known before."""
    other = "directory" if bucket else "bucket"
    unnamed = ("delete", "the name", "--claim", "cancel", "the command")
    found = [one for one in STRIKES if one.where != other]
    return [one for one in found if asked is not UPGRADE or not one.kind.endswith(unnamed)]


BEGINNING = (
    Moment("copying its state", Role.MASTER, "open", r"/{name}/gen-\d+/chk-\d+/copy-[^/]+/(?!manifest)"),
    Moment("its first record", Role.MASTER, "link", r"/{name}/log/0*1\.json$"),
)
CLAIMING = (*BEGINNING, Moment("its claim", Role.MASTER, "open", r"/{name}/.*/claimed\.json$"))
"""Calls of `weir submit --from`; `{name}` is the new job's."""


def second_start(words: tuple[str, ...]) -> Strike:
    """Runs the same `weir submit --from` while the first one stands. One of both begins the job."""

    def go(world: SavepointWorld, chance: random.Random, standing: int, name: str) -> Struck:
        said = world.weir(*words)
        wrong = () if said.code == 0 else (f"the second start ended with {said.code}: {said.short}",)
        return Struck(wrong=wrong, begun=said.code == 0)

    return Strike("beside it: a second weir submit --from", go)


def beginning_strikes(words: tuple[str, ...]) -> list[Strike]:
    """Returns what can be done to a `weir submit --from` of these words. `{name}` is the savepoint's."""
    return [
        kill_command(),
        second_start(words),
        beside("weir gc", False, "gc", JOB),
        Strike("beside it: weir savepoint delete", beside("", False, "savepoint", "delete", f"{JOB}/{{name}}").go),
    ]
