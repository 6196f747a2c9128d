"""A small schema registry: the part of the documented HTTP API that readers use."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SchemaRegistry:
    """`schemas` by id: type, text (or serialized file), references. `away`: answers 503 to so many next requests."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[tuple[str, int], dict[str, Any]] = {}
        self.requests: list[str] = []
        self.away = 0
        self.password: str | None = None

    def avro(self, id: int, schema: Any, references: list[dict[str, Any]] | None = None) -> None:
        self.schemas[id] = {"schema": json.dumps(schema), "references": references or []}

    def protobuf(self, id: int, file: bytes) -> None:
        self.schemas[id] = {"schemaType": "PROTOBUF", "schema": base64.b64encode(file).decode()}

    @contextmanager
    def running(self) -> Iterator[str]:
        listening = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        listening.daemon_threads = True
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            thread.join()
            listening.server_close()


def _handler(registry: SchemaRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            registry.requests.append(self.path)
            if registry.away:
                registry.away -= 1
                return self._answer(503, {})
            if registry.password is not None:
                given = self.headers.get("Authorization", "").removeprefix("Basic ")
                if base64.b64decode(given).decode() != f"weir:{registry.password}":
                    return self._answer(401, {"error_code": 401})
            found = None
            if by_id := re.fullmatch(r"/schemas/ids/(\d+)", path):
                found = registry.schemas.get(int(by_id[1]))
                if found is not None and found.get("schemaType") == "PROTOBUF" and query != "format=serialized":
                    found = {**found, "schema": 'syntax = "proto3"; ...'}
            elif by_subject := re.fullmatch(r"/subjects/([^/]+)/versions/(\d+)", path):
                found = registry.subjects.get((by_subject[1], int(by_subject[2])))
            return self._answer(404, {"error_code": 40403}) if found is None else self._answer(200, found)

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response_only(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
