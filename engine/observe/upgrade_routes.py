"""The routes of an upgrade: `POST /upgrade` asks for one, `GET /upgrade` says what became of it."""

from __future__ import annotations

from typing import Protocol

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.host.upgrade_record import UpgradeStatus
from engine.host.upgrade_request import AskedUpgrade
from engine.jobmaster.savepoints import Refusal

LARGEST_BODY = 64_000


class Upgrading(Protocol):
    """The JobMaster process, as far as these routes need it. Both methods use files only, and run on any thread."""

    def upgrade(self) -> UpgradeStatus | None: ...

    def request_upgrade(self, asked: AskedUpgrade) -> str | Refusal:
        """Starts a process that checks and carries out the upgrade, and returns the id of the upgrade at once."""


class UpgradeRoutes:
    def __init__(self, process: Upgrading) -> None:
        self._process = process

    async def request(self, request: Request) -> Response:
        asked = _asked(await request.body())
        answer = await run_in_threadpool(self._process.request_upgrade, asked)
        if isinstance(answer, Refusal):
            raise HTTPException(409, answer.why)
        return JSONResponse({"upgrade": answer, "see": "/upgrade"}, status_code=202)

    async def last(self, request: Request) -> Response:
        shown = await run_in_threadpool(self._process.upgrade)
        return Response(msgspec.json.encode(shown), media_type="application/json")


def _asked(body: bytes) -> AskedUpgrade:
    try:
        if len(body) > LARGEST_BODY:
            raise msgspec.DecodeError(f"it has {len(body)} bytes")
        return msgspec.json.decode(body or b"{}", type=AskedUpgrade)
    except msgspec.DecodeError as error:
        form = '{"to": "MODULE:FUNCTION", "params": {"rate": "50"}, "parallelism": 3, "dry_run": true}'
        raise HTTPException(400, f"the body is not like {form}: {error}") from error
