"""The routes of a rescale: `POST /rescale` begins one, `GET /rescales` says what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.jobmaster.rescaling import Accepted, Answer, Refused, Unchanged
from engine.observe.timeline import Timeline
from engine.protocol.scaling import Scaling

LARGEST_BODY = 64_000


class Rescaling(Protocol):
    """The JobMaster process, as far as these routes need it."""

    timeline: Timeline

    def ask(self, question: Callable[[], Any]) -> Any: ...

    def decide(self, command: Callable[[], Any]) -> Any: ...

    def rescale(self, wanted: Scaling) -> Answer: ...


class RescaleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /rescale`: the parallelism of all operators that set none, or of single ones by uid."""

    parallelism: int | None = None
    operators: dict[str, int] = {}


class RescaleRoutes:
    def __init__(self, process: Rescaling) -> None:
        self._process = process

    async def rescale(self, request: Request) -> Response:
        wanted = _scaling(await request.body())
        answer: Answer = await run_in_threadpool(self._process.decide, lambda: self._process.rescale(wanted))
        match answer:
            case Accepted(rescale):
                return JSONResponse({"rescale": rescale}, status_code=202)
            case Unchanged():
                return JSONResponse({"rescale": None})
            case Refused(why, wrong):
                raise HTTPException(400 if wrong else 409, why)

    async def rescales(self, request: Request) -> Response:
        known = await run_in_threadpool(self._process.ask, lambda: self._process.timeline.rescales)
        return Response(msgspec.json.encode(known), media_type="application/json")


def _scaling(body: bytes) -> Scaling:
    try:
        if len(body) > LARGEST_BODY:
            raise msgspec.DecodeError(f"it has {len(body)} bytes")
        asked = msgspec.json.decode(body or b"{}", type=RescaleBody)
    except msgspec.DecodeError as error:
        form = '{"parallelism": 3} or {"operators": {"UID": 3}}'
        raise HTTPException(400, f"the body is not {form}: {error}") from error
    return Scaling(asked.parallelism, asked.operators)
