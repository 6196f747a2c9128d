"""The JobMaster over HTTP, as JSON, with a bearer token. The CLI and Dagster use nothing else."""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from engine.cluster.master import MasterProcess


class NoAnswer(Exception):
    """The JobMaster is there, but can't say anything now."""


async def _no_answer(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=503)


class RestServer:
    def __init__(self, host: str, token: str, process: MasterProcess) -> None:
        self._process = process
        self._expected = f"Bearer {token}"
        self._socket = socket.create_server((host, 0))
        self.url = f"http://{host}:{self._socket.getsockname()[1]}"
        app = Starlette(
            routes=[
                Route("/job", self._status),
                Route("/events", self._events),
                Route("/checkpoints", self._trigger, methods=["POST"]),
                Route("/cancel", self._cancel, methods=["POST"]),
            ],
            exception_handlers={NoAnswer: _no_answer},
        )
        app.add_middleware(BaseHTTPMiddleware, dispatch=self._authorise)
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))

    def start(self) -> None:
        threading.Thread(target=self._server.run, args=([self._socket],), name="rest", daemon=True).start()

    def stop(self) -> None:
        self._server.should_exit = True

    async def _authorise(self, request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        if not hmac.compare_digest(request.headers.get("authorization", ""), self._expected):
            return JSONResponse({"error": "wrong or missing token"}, status_code=401)
        return await call(request)

    async def _status(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._process.ask, self._process.status))

    async def _events(self, request: Request) -> Response:
        """Everything that happened, newest last; `?after_ms=` for what is new."""
        after = int(request.query_params.get("after_ms", 0))
        events = await run_in_threadpool(self._process.ask, self._process.events)
        return JSONResponse([event for event in events if event["at_ms"] > after])

    async def _trigger(self, request: Request) -> Response:
        checkpoint = await run_in_threadpool(self._process.ask, self._process.trigger)
        if checkpoint is None:
            return JSONResponse({"error": "the job is not running now, so it can't be checkpointed"}, status_code=409)
        return JSONResponse({"checkpoint": checkpoint}, status_code=202)

    async def _cancel(self, request: Request) -> Response:
        await run_in_threadpool(self._process.ask, self._process.cancel)
        return JSONResponse({"cancelling": True}, status_code=202)
