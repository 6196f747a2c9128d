"""Serves the JobMaster over HTTP, as JSON, to clients with the bearer token. CLI and Dagster change a running job only
through it.

`ROUTES` is the whole interface: `GET /` answers with it, docs/rest.md has an example of each.
"""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from engine.core.errors import NoAnswer
from engine.jobmaster.status import JobStatus, VertexStatus
from engine.observe.bounded import CONNECTIONS, BoundedProtocol
from engine.observe.metrics import CONTENT_TYPE, exposition
from engine.observe.timeline import Timeline

ROUTES = {
    "GET /": "lists these routes",
    "GET /job": "shows the job now: phase, guarantee, checkpoints, slots; vertices with rates, busy shares, watermarks",
    "GET /job/vertices/{id}": "shows one vertex of the job, with its subtasks",
    "GET /checkpoints": "lists the checkpoints that are remembered, newest first; ?limit=20&offset=0",
    "POST /checkpoints": "triggers a checkpoint now and returns its number; GET /checkpoints/{id} tells how it ended",
    "GET /checkpoints/{id}": "shows one checkpoint: where its time went, by vertex, operator and subtask; its ledger",
    "GET /restarts": "lists why and when attempts ended, newest first, and how long until the job ran again",
    "GET /events": "lists what happened, oldest first; ?after_ms=0",
    "GET /metrics": "returns all figures in Prometheus' text format",
    "POST /cancel": "ends the job; its last epoch stays",
}


class Answering(Protocol):
    """The JobMaster process as HTTP sees it. The other methods run on the deciding thread only.

    `ask` runs one that changes nothing, `decide` runs `trigger` or `cancel`.
    """

    timeline: Timeline

    def ask(self, question: Callable[[], Any]) -> Any: ...

    def decide(self, command: Callable[[], Any]) -> Any: ...

    def status(self) -> JobStatus: ...

    def vertex(self, vertex_id: str) -> VertexStatus | None: ...

    def trigger(self) -> int | None: ...

    def cancel(self) -> bool: ...


class RestServer:
    def __init__(self, host: str, token: str, process: Answering) -> None:
        self._socket = socket.create_server((host, 0))
        self.url = f"http://{host}:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                make_app(token, process),
                http=BoundedProtocol,
                ws="none",
                loop="asyncio",
                backlog=CONNECTIONS,  # also the number of connections that are accepted at once
                log_level="error",
                lifespan="off",
                access_log=False,
            )
        )

    def start(self) -> None:
        threading.Thread(target=self._server.run, args=([self._socket],), name="rest", daemon=True).start()

    def stop(self) -> None:
        self._server.should_exit = True


def make_app(token: str, process: Answering) -> Starlette:
    handlers = _Handlers(process)
    by_route: Mapping[str, Callable[[Request], Awaitable[Response]]] = {
        "GET /": handlers.routes,
        "GET /job": handlers.job,
        "GET /job/vertices/{id}": handlers.vertex,
        "GET /checkpoints": handlers.checkpoints,
        "POST /checkpoints": handlers.trigger,
        "GET /checkpoints/{id}": handlers.checkpoint,
        "GET /restarts": handlers.restarts,
        "GET /events": handlers.events,
        "GET /metrics": handlers.metrics,
        "POST /cancel": handlers.cancel,
    }
    assert by_route.keys() == ROUTES.keys()
    routes = []
    for route, handler in by_route.items():
        method, path = route.split(" ")
        routes.append(Route(path.replace("vertices/{id}", "vertices/{id:path}"), handler, methods=[method]))
    app = Starlette(
        routes=routes, exception_handlers={HTTPException: _explain, NoAnswer: _no_answer, Exception: _failed}
    )
    app.add_middleware(BaseHTTPMiddleware, dispatch=_authorise(f"Bearer {token}"))
    return app


def _authorise(expected: str) -> Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]:
    async def authorise(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        if not hmac.compare_digest(request.headers.get("authorization", "").encode(), expected.encode()):
            return _error(401, "wrong or missing token; send the one in the job's run/token as a bearer token")
        answer = await call(request)
        answer.headers["x-content-type-options"] = "nosniff"  # a browser must not take an answer for a page
        return answer

    return authorise


async def _explain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405) and error.detail in ("Not Found", "Method Not Allowed"):
        said = f"there is no {request.method} {request.url.path}"
        return JSONResponse({"error": said, "routes": ROUTES}, status_code=error.status_code)
    return _error(error.status_code, error.detail)


async def _no_answer(request: Request, error: Exception) -> Response:
    return _error(503, str(error))


async def _failed(request: Request, error: Exception) -> Response:
    return _error(500, f"{request.method} {request.url.path} failed: {type(error).__name__}; run/master.log says more")


def _error(code: int, what: str) -> Response:
    return JSONResponse({"error": what}, status_code=code)


class _Handlers:
    def __init__(self, process: Answering) -> None:
        self._process = process

    async def _ask(self, question: Callable[[], Any]) -> Any:
        return await run_in_threadpool(self._process.ask, question)

    async def routes(self, request: Request) -> Response:
        return JSONResponse({"routes": ROUTES})

    async def job(self, request: Request) -> Response:
        return _json(await self._ask(self._process.status))

    async def vertex(self, request: Request) -> Response:
        wanted = request.path_params["id"]
        found = await self._ask(lambda: self._process.vertex(wanted))
        if found is None:
            raise HTTPException(404, f"the job has no vertex {wanted!r}; GET /job lists them")
        return _json(found)

    async def checkpoints(self, request: Request) -> Response:
        limit, offset = _number(request, "limit", 20), _number(request, "offset", 0)
        known = await self._ask(lambda: [record.summary() for record in self._process.timeline.checkpoints])
        return _json({"total": len(known), "checkpoints": known[offset : offset + limit]})

    async def trigger(self, request: Request) -> Response:
        checkpoint = await run_in_threadpool(self._process.decide, self._process.trigger)
        if checkpoint is None:
            return _error(409, "the job is not running now, so it can't be checkpointed")
        return JSONResponse({"checkpoint": checkpoint}, status_code=202)

    async def checkpoint(self, request: Request) -> Response:
        text = request.path_params["id"]
        number = _whole_number(text)
        if number is None:
            raise HTTPException(400, f"a checkpoint is named by its number, not {_short(text)!r}")
        found = await self._ask(lambda: self._process.timeline.checkpoint(number))
        if found is None:
            raise HTTPException(404, f"checkpoint {number} is not remembered; GET /checkpoints lists those that are")
        return _json(found.with_parts())

    async def restarts(self, request: Request) -> Response:
        return _json(await self._ask(lambda: self._process.timeline.restarts))

    async def events(self, request: Request) -> Response:
        after_ms = _number(request, "after_ms", 0)
        events = await self._ask(lambda: list(self._process.timeline.events))
        return _json([event for event in events if event.at_ms > after_ms])

    async def metrics(self, request: Request) -> Response:
        status = await self._ask(self._process.status)
        return PlainTextResponse(exposition(status), headers={"content-type": CONTENT_TYPE})

    async def cancel(self, request: Request) -> Response:
        await run_in_threadpool(self._process.decide, self._process.cancel)
        return JSONResponse({"cancelling": True}, status_code=202)


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    number = _whole_number(text)
    if number is None:
        raise HTTPException(400, f"{name}={_short(text)!r} is not a number from 0 up")
    return number


def _whole_number(text: str) -> int | None:
    """Returns the number that is written in ASCII digits, up to 18 of them; None: the text is no such number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"
