"""The faults. `strike` returns how to end the fault, or None if there is nothing to end."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from checks.processes import PROCESSES, Role
from tests.chaos.world import JOB, World, can_mount

Heal = Callable[[], None]
SHORT_S = 1.0
LONG_S = {Role.SLOT: 8.0, Role.DAEMON: 8.0, Role.JVM: 45.0, Role.MASTER: 45.0, Role.SUPERVISOR: 15.0}
"""Longer than the time-out of those who wait for this process. Nobody waits for a supervisor."""
SLOW_FSYNC_S = 0.7


@dataclass(frozen=True)
class Fault:
    kind: str
    strike: Callable[[World, random.Random], Heal | None]
    lasts_s: float = 0.0


def kill(role: Role) -> Fault:
    def strike(world: World, chance: random.Random) -> None:
        found = world.of(role)
        if found:
            chance.choice(found).send(signal.SIGKILL)

    return Fault(f"kill -9: {role.value}", strike)


def kill_all() -> Fault:
    def strike(world: World, chance: random.Random) -> None:
        found = world.processes()
        chance.shuffle(found)
        for process in found:
            process.send(signal.SIGKILL)

    return Fault("kill -9: all at once", strike)


def stop(role: Role, lasts_s: float, how: str) -> Fault:
    def strike(world: World, chance: random.Random) -> Heal | None:
        found = world.of(role)
        if not found:
            return None
        process = chance.choice(found)
        process.send(signal.SIGSTOP)
        return lambda: process.send(signal.SIGCONT) and None

    return Fault(f"SIGSTOP {how}: {role.value}", strike, lasts_s)


def read_only(lasts_s: float) -> Fault:
    def strike(world: World, chance: random.Random) -> Heal:
        folder = str(world.store / JOB)
        subprocess.run(["mount", "--bind", "-o", "ro", folder, folder], check=True)
        return lambda: subprocess.run(["umount", "-l", folder], check=True) and None

    return Fault(f"store: read-only for {lasts_s:.0f} s", strike, lasts_s)


def full(lasts_s: float) -> Fault:
    def strike(world: World, chance: random.Random) -> Heal:
        ballast = world.store / f"ballast-{chance.getrandbits(32)}"
        _fill(ballast)
        return lambda: ballast.unlink(missing_ok=True)

    return Fault(f"store: full for {lasts_s:.0f} s", strike, lasts_s)


def slow(lasts_s: float) -> Fault:
    def strike(world: World, chance: random.Random) -> Heal:
        world.slow.write_text(str(SLOW_FSYNC_S))
        return lambda: world.slow.unlink(missing_ok=True)

    return Fault(f"store: each fsync takes {SLOW_FSYNC_S} s", strike, lasts_s)


def all_faults() -> list[Fault]:
    """Returns every fault that this user can cause: only root can make the store full or read-only."""
    faults = [kill(role) for role in PROCESSES] + [kill_all()]
    for role in PROCESSES:
        faults += [stop(role, SHORT_S, "for a second"), stop(role, LONG_S[role], "for too long")]
    return [*faults, slow(10.0), *([read_only(6.0), full(6.0)] if can_mount() else [])]


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"0" * 4096)
