"""Goal: whoever sends half a request, or none, neither holds descriptors of the JobMaster nor keeps others waiting.

A real server in a process with few descriptors, and many connections that never finish their request.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from engine.observe.bounded import BoundedProtocol

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


class FakeLoop:
    """A loop whose time is what the test says. `timers`: when each is due, and what it calls."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: dict[asyncio.TimerHandle, Callable[[], None]] = {}

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(self.now_s + delay_s, call, (), self)  # type: ignore[arg-type]
        self.timers[timer] = call
        return timer

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None: ...

    def get_debug(self) -> bool:
        return False

    def pass_time(self, to_s: float) -> None:
        self.now_s = to_s
        for timer in [one for one in self.timers if one.when() <= to_s and not one.cancelled()]:
            self.timers.pop(timer)()


class FakeTransport(asyncio.Transport):
    aborted = False

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted


@pytest.mark.parametrize("drips", [False, True])
def test_the_time_for_a_request_is_five_seconds_from_the_connection_however_its_headers_come(drips: bool) -> None:
    """The tests above wait for a minute, since they can't tell a slow server from a slow machine."""
    loop, transport = FakeLoop(), FakeTransport()
    config = Config(app=lambda: None, ws="none", lifespan="off")
    config.load()
    connection = BoundedProtocol(config, ServerState(), {}, loop)  # type: ignore[arg-type]
    connection.connection_made(transport)
    connection.data_received(HALF)
    for now_s in (1.0, 2.0, 3.0, 4.0, 4.9):
        if drips:
            connection.data_received(b"x")
        loop.pass_time(now_s)
        assert not transport.aborted
    loop.pass_time(5.0)
    assert transport.aborted
