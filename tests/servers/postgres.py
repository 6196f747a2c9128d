"""A real PostgreSQL server. `python -m tests.servers.postgres` (`make postgres`) finds or installs its programs.

They are looked for on PATH and where Debian puts them. As root they are installed with apt-get. The server refuses to
run as root, so root starts it as the system user `postgres`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

USER = "postgres"
TRIES = 3
START_S = 120


def programs() -> Path:
    """Returns the folder with `initdb` and `pg_ctl`."""
    found = _found()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        print("installing postgresql", file=sys.stderr)
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "--no-install-recommends", "postgresql"]):
            subprocess.run(["apt-get", "-qq", *command], env=environ, check=True, stdout=subprocess.DEVNULL)
        found = _found()
    if found is None:
        sys.exit("the tests need PostgreSQL's initdb and pg_ctl (Debian: apt-get install postgresql)")
    return found


def _found() -> Path | None:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("pg_ctl")
    for folder in [*([Path(on_path).parent] if on_path else []), *folders]:
        if all((folder / name).exists() for name in ("initdb", "pg_ctl", "postgres")):
            return folder
    return None


@dataclass
class PostgresServer:
    """A running server with one database, `postgres`. Everybody on this machine needs the password."""

    folder: Path
    port: int
    password: str

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=weir dbname=postgres"

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PGPASSWORD", self.password)

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Runs a statement in a transaction of its own, and returns its rows."""
        with psycopg.connect(self.dsn, password=self.password) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def stop(self) -> None:
        """Stops the server as a crash does: open transactions are lost, their clients are cut."""
        _as_user(self.folder, "pg_ctl", "-D", self.data, "-m", "immediate", "-w", "stop")

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        log = str(self.folder / "log")
        _as_user(self.folder, "pg_ctl", "-D", self.data, "-l", log, "-o", options, "-t", str(START_S), "-w", "start")

    @property
    def data(self) -> str:
        return str(self.folder / "data")


def _as_user(folder: Path, program: str, *arguments: str) -> None:
    command = [str(programs() / program), *arguments]
    if os.geteuid() == 0:
        command = ["runuser", "-u", USER, "--", *command]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        log = folder / "log"
        raise AssertionError(
            f"{' '.join(command)}: {done.stdout}{done.stderr}{log.read_text() if log.exists() else ''}"
        )


@contextmanager
def running(folder: Path | None = None) -> Iterator[PostgresServer]:
    """Runs a server that keeps its data in this folder; None: in one of its own.

    pytest's own folders can't be entered by another user.
    """
    with tempfile.TemporaryDirectory(prefix="weir-postgres-") as own:
        where = folder or Path(own)
        if os.geteuid() == 0:
            shutil.chown(where, USER)
        server = _started(where)
        try:
            yield server
        finally:
            with suppress(AssertionError):  # a test may have stopped it
                server.stop()


def _started(folder: Path) -> PostgresServer:
    """Starts a server, again on another port if somebody else has taken its port in the meantime."""
    password = secrets.token_hex(16)
    secret = folder / "password"
    secret.write_text(password)
    secret.chmod(0o600)
    if os.geteuid() == 0:
        shutil.chown(secret, USER)
    arguments = ("-D", str(folder / "data"), "-U", "weir", "-A", "scram-sha-256", "--pwfile", str(secret))
    _as_user(folder, "initdb", *arguments, "-E", "UTF8", "--locale=C", "--no-sync")
    for again in reversed(range(TRIES)):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            server = PostgresServer(folder, probe.getsockname()[1], password)
        try:
            server.start()
            return server
        except AssertionError:
            if not again:
                raise
    raise AssertionError("unreachable")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


if __name__ == "__main__":
    print(programs())
