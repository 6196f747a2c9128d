"""An HTTP proxy that breaks the requests that a test asks it to break. It stands between a client and a real server."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import urllib3

from tests.servers.minio import MinioServer


class Fault(Enum):
    REFUSE = "answers 503 and does not forward the request"
    LATER = "answers 503, asks to be left alone for an hour, and does not forward the request"
    FAIL_AFTER = "forwards the request, and answers 500"
    LOSE_ANSWER = "forwards the request, and closes the connection instead of answering"
    CUT_ANSWER = "forwards the request, and closes the connection in the middle of the answer"
    SILENT = "does not answer until the proxy is closed"
    SLOW = "forwards the request, and answers 0.4 s later"
    IGNORE_CONDITION = "forwards the request without its condition"
    LIE = "forwards the request without its condition, and answers that the object exists"
    CONFLICT = "answers that another conditional request is under way, and does not forward the request"
    KEEP = "does not forward a request to delete, and answers that access to each object is denied"


Decide = Callable[[str, str], Fault | None]


def once(fault: Fault, method: str, part: str = "") -> Decide:
    return times(1, fault, method, part)


def times(count: int, fault: Fault, method: str, part: str = "") -> Decide:
    """Breaks the first `count` requests of this method whose address contains this text."""
    left = [count]

    def decide(asked: str, address: str) -> Fault | None:
        if asked != method or part not in address or not left[0]:
            return None
        left[0] -= 1
        return fault

    return decide


class _Listening(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints what went wrong, unless a client was killed in the middle of its request."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class FaultyProxy:
    """`requests` holds each request that came: its method and its path, without the query."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.decide: Decide = lambda method, address: None
        self.requests: list[tuple[str, str]] = []
        self.closed = threading.Event()
        self.http = urllib3.PoolManager(retries=False)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Runs the proxy, and yields its address."""
        listening = _Listening(("127.0.0.1", 0), _handler(self))
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            self.closed.set()
            listening.shutdown()
            thread.join()
            listening.server_close()


@pytest.fixture
def proxy(minio_server: MinioServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy in front of MinIO, through which stores in buckets are reached."""
    minio_server.use(monkeypatch)
    faulty = FaultyProxy(minio_server.endpoint)
    with faulty.running() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        yield faulty


def _denied(body: bytes) -> bytes:
    """Returns the answer to a request to delete several objects, none of which was deleted."""
    keys = re.findall(rb"<Key>(.*?)</Key>", body)
    errors = b"".join(b"<Error><Key>%s</Key><Code>AccessDenied</Code></Error>" % key for key in keys)
    return b'<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">%s</DeleteResult>' % errors


def _handler(proxy: FaultyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            proxy.requests.append((self.command, self.path.partition("?")[0]))
            fault = proxy.decide(self.command, self.path)
            headers = dict(self.headers.items())
            if fault in (Fault.IGNORE_CONDITION, Fault.LIE):
                headers.pop("If-None-Match", None)
            if fault is Fault.SILENT:
                proxy.closed.wait()
                self.close_connection = True
                return
            if fault is Fault.REFUSE:
                self._answer(503, {}, b"")
                return
            if fault is Fault.LATER:
                self._answer(503, {"Retry-After": "3600"}, b"")
                return
            if fault is Fault.CONFLICT:
                self._answer(409, {}, b"<Error><Code>ConditionalRequestConflict</Code></Error>")
                return
            if fault is Fault.KEEP:
                self._answer(200, {"Content-Type": "application/xml"}, _denied(body))
                return
            try:
                answer = proxy.http.request(self.command, proxy.server + self.path, body=body, headers=headers)
            except urllib3.exceptions.HTTPError:  # somebody has killed the server
                self.close_connection = True
                return
            if fault is Fault.SLOW:
                proxy.closed.wait(0.4)
            match fault:
                case Fault.LOSE_ANSWER:
                    self.close_connection = True
                case Fault.LIE:
                    self._answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
                case Fault.FAIL_AFTER:
                    self._answer(500, {}, b"")
                case Fault.CUT_ANSWER:
                    self._answer(answer.status, dict(answer.headers), answer.data, sent=len(answer.data) // 2)
                    self.close_connection = True
                case _:
                    self._answer(answer.status, dict(answer.headers), answer.data)

        def _answer(self, status: int, headers: dict[str, str], data: bytes, sent: int | None = None) -> None:
            self.send_response_only(status)
            kept = {name: value for name, value in headers.items() if name.lower() not in _OF_THE_CONNECTION}
            if self.command != "HEAD" or "Content-Length" not in headers:
                kept["Content-Length"] = str(len(data))
            else:
                kept["Content-Length"] = headers["Content-Length"]
            for name, value in kept.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data[:sent])

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward

        def log_message(self, *_: object) -> None:
            pass

    return Handler


_OF_THE_CONNECTION = {"content-length", "transfer-encoding", "connection", "content-encoding"}
