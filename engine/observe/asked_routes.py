"""The routes of an upgrade and of a rehearsal, which a process of its own carries out.

POST asks for one, GET shows the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.jobmaster.savepoints import Refusal
from engine.observe.bodies import decoded

Asked = TypeVar("Asked", bound=msgspec.Struct)


class AskedRoutes(Generic[Asked]):
    """`begin` starts the process and returns its id at once, `shown` returns the last. Both use files only."""

    def __init__(
        self,
        name: str,
        body: type[Asked],
        form: str,
        begin: Callable[[Asked], str | Refusal],
        shown: Callable[[], msgspec.Struct | None],
    ) -> None:
        self._name = name
        self._body = body
        self._form = form
        self._begin = begin
        self._shown = shown

    async def request(self, request: Request) -> Response:
        asked = decoded(await request.body(), self._body, self._form)
        answer = await run_in_threadpool(self._begin, asked)
        if isinstance(answer, Refusal):
            raise HTTPException(409, answer.why)
        return JSONResponse({self._name: answer, "see": f"/{self._name}"}, status_code=202)

    async def last(self, request: Request) -> Response:
        shown = await run_in_threadpool(self._shown)
        return Response(msgspec.json.encode(shown), media_type="application/json")
