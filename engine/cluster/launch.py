"""The folder `<store>/<job>/run/`: how the processes of a job find each other. Readable only by the owner."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


class MasterLaunch(msgspec.Struct, frozen=True):
    """What a JobMaster process is started with."""

    path: str
    name: str
    params: dict[str, str]
    parallelism: int | None
    store: str
    max_slots: int
    slots_timeout_s: float = 60.0
    heartbeat_timeout_s: float = 10.0


class MasterAddress(msgspec.Struct, frozen=True):
    """Where a running JobMaster answers."""

    url: str
    pid: int
    generation: int


class MasterExit(msgspec.Struct, frozen=True):
    """How a JobMaster ended."""

    outcome: str
    reason: str


class RunFolder:
    def __init__(self, store: str | Path, job: str) -> None:
        self.folder = Path(store).absolute() / job / "run"
        self.log = self.folder / "master.log"

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)

    def write_launch(self, launch: MasterLaunch) -> Path:
        self._write("launch.json", msgspec.json.format(msgspec.json.encode(launch)))
        return self.folder / "launch.json"

    def read_launch(self) -> MasterLaunch | None:
        return self._read("launch.json", MasterLaunch)

    def write_address(self, address: MasterAddress) -> None:
        self._write("master.json", msgspec.json.encode(address))

    def read_address(self) -> MasterAddress | None:
        return self._read("master.json", MasterAddress)

    def write_exit(self, end: MasterExit) -> None:
        self._write("exit.json", msgspec.json.encode(end))
        (self.folder / "master.json").unlink(missing_ok=True)

    def read_exit(self) -> MasterExit | None:
        return self._read("exit.json", MasterExit)

    def clear(self) -> None:
        for name in ("exit.json", "master.json"):
            (self.folder / name).unlink(missing_ok=True)

    def token(self) -> str:
        """Made once per job; who can read the folder can talk to the job."""
        path = self.folder / "token"
        if not path.exists():
            self._write("token", secrets.token_urlsafe(32).encode())
        return path.read_text()

    def _write(self, name: str, data: bytes) -> None:
        """Whole or not at all, and never readable by others."""
        temporary = self.folder / f".{name}.{os.getpid()}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(self.folder / name)

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode((self.folder / name).read_bytes(), type=kind)
        except FileNotFoundError:
            return None
