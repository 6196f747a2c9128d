"""The routes of the commit gate: `GET /gate` shows what is held, `POST /gate` decides about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.jobmaster.gatekeeper import HeldEpoch
from engine.jobmaster.savepoints import Refusal
from engine.observe.bodies import decoded
from engine.protocol.gate import GateVerdict, Ruling

_FORM = '{"checkpoint": 42, "decision": "release"}, or "discard", or "retry"'


class GateStatus(msgspec.Struct, frozen=True):
    """What the gates hold now, and their verdicts about the newest epoch that this JobMaster has published."""

    held: list[HeldEpoch]
    verdicts: list[GateVerdict]


class GateBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /gate`. The checkpoint is the one that was looked at."""

    checkpoint: int
    decision: Ruling


class Gated(Protocol):
    """The JobMaster process, as far as these routes need it."""

    def ask(self, question: Callable[[], Any]) -> Any: ...

    def decide(self, command: Callable[[], Any]) -> Any: ...

    def gate(self) -> GateStatus: ...

    def rule(self, checkpoint: int, ruling: Ruling) -> Refusal | None: ...


class GateRoutes:
    def __init__(self, process: Gated) -> None:
        self._process = process

    async def shown(self, request: Request) -> Response:
        status = await run_in_threadpool(self._process.ask, self._process.gate)
        return Response(msgspec.json.encode(status), media_type="application/json")

    async def rule(self, request: Request) -> Response:
        asked = decoded(await request.body(), GateBody, _FORM)
        decide = self._process.decide
        refusal = await run_in_threadpool(decide, lambda: self._process.rule(asked.checkpoint, asked.decision))
        if isinstance(refusal, Refusal):
            raise HTTPException(409, refusal.why)
        body = {"checkpoint": asked.checkpoint, "decision": asked.decision.value}
        return JSONResponse(body, status_code=202)
