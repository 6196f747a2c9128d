"""Goal: whoever sends half a request, or none, neither holds descriptors of the JobMaster nor keeps others waiting.

A real server in a process with few descriptors, and many connections that never finish their request.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

SERVER = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
import engine.observe.bounded as bounded
bounded.HEADERS_S = float(sys.argv[1])
from engine.observe.http import RestServer
server = RestServer("127.0.0.1", "secret", None)
server._server.config.timeout_keep_alive = 600  # so that uvicorn's own time ends no connection here
server.start()
print(server.url, flush=True)
sys.stdin.read()
"""
TOKEN = {"authorization": "Bearer secret"}


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(request.param)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None and server.stdin is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


def half_sent(url: str, count: int, sent: bytes) -> list[socket.socket]:
    host, port = url.removeprefix("http://").split(":")
    found = []
    for _ in range(count):
        connection = socket.create_connection((host, int(port)), timeout=60)
        connection.sendall(sent)
        found.append(connection)
    return found


def ended(connection: socket.socket) -> bool:
    """Waits until the server has closed the connection."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


HALF = b"GET /job HTTP/1.1\r\nhost: x\r\nx-long: "


@pytest.mark.parametrize("url", [600], indirect=True)
@pytest.mark.parametrize("sent", [b"", HALF], ids=["nothing", "half of the headers"])
def test_two_hundred_half_sent_requests_keep_nobody_else_waiting(url: str, sent: bytes) -> None:
    connections = half_sent(url, 200, sent)
    answer = httpx.get(url, headers=TOKEN, timeout=60)
    assert answer.status_code == 200 and "routes" in answer.json()
    assert ended(connections[0]), "the oldest gave way"
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("url", [0.5], indirect=True)
@pytest.mark.parametrize(
    "sent",
    [b"", HALF, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + HALF],
    ids=["nothing", "half of the headers", "a whole request, then half of one"],
)
def test_a_request_that_is_never_finished_is_given_up(url: str, sent: bytes) -> None:
    (connection,) = half_sent(url, 1, sent)
    assert ended(connection)


@pytest.mark.parametrize("url", [0.5], indirect=True)
def test_headers_that_drip_are_given_up_too(url: str) -> None:
    (connection,) = half_sent(url, 1, HALF)
    deadline_s = time.monotonic() + 60
    with pytest.raises(ConnectionError):
        while time.monotonic() < deadline_s:
            connection.sendall(b"x")
            time.sleep(0.1)


@pytest.mark.parametrize("url", [60], indirect=True)
def test_headers_have_an_end(url: str) -> None:
    (connection,) = half_sent(url, 1, HALF)
    with pytest.raises(ConnectionError):
        for _ in range(1000):
            connection.sendall(b"x" * 65536)


@pytest.mark.parametrize("url", [60], indirect=True)
@pytest.mark.parametrize("value", [b"Bearer \xff\xfe", "Bearer ſecret".encode(), b"\xe9" * 500])
def test_a_token_that_is_not_ascii_is_a_clean_401(url: str, value: bytes) -> None:
    answer = httpx.get(url, headers=[(b"authorization", value)], timeout=60)
    assert answer.status_code == 401 and "wrong or missing token" in answer.json()["error"]
