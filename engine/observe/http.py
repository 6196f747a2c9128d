"""Serves the JobMaster over HTTP, as JSON, to clients with the bearer token. CLI and Dagster change a running job only
through it.

`ROUTES` is the whole interface: `GET /` answers with it, docs/rest.md has an example of each.
"""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
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

from engine.core.errors import NoAnswer, WeirError
from engine.host.rehearsal_request import AskedRehearsal, RehearsalStatus
from engine.host.upgrade_record import UpgradeStatus
from engine.host.upgrade_request import AskedUpgrade
from engine.jobmaster.collecting import Collection
from engine.jobmaster.rescaling import Answer
from engine.jobmaster.savepoints import Refusal
from engine.jobmaster.status import JobStatus, VertexStatus
from engine.observe.asked_routes import AskedRoutes
from engine.observe.bounded import CONNECTIONS, BoundedProtocol
from engine.observe.gate_routes import GateRoutes, GateStatus
from engine.observe.metrics import CONTENT_TYPE, exposition
from engine.observe.rescale_routes import RescaleRoutes
from engine.observe.savepoint_requests import default_name, requested
from engine.observe.savepoints import SavepointRecord, SavepointRecords, SavepointState
from engine.observe.timeline import Timeline
from engine.protocol.gate import Ruling
from engine.protocol.savepoint import SavepointRequest, StopRequest
from engine.protocol.scaling import Scaling
from engine.snapshot.query import NoSuchState, StateOfKey

_UPGRADE = '{"to": "MODULE:FUNCTION", "params": {"rate": "50"}, "parallelism": 3, "dry_run": true}'
_REHEARSAL = '{"to": "MODULE:FUNCTION", "checkpoints": 5, "params": {"rate": "50"}, "parallelism": 3}'

ROUTES = {
    "GET /": "lists these routes",
    "GET /job": "shows the job now: phase, guarantee, checkpoints, slots; vertices with rates, busy shares, watermarks",
    "GET /job/vertices/{id}": "shows one vertex of the job, with its subtasks",
    "GET /checkpoints": "lists the checkpoints that are remembered, newest first; ?limit=20&offset=0",
    "POST /checkpoints": "triggers a checkpoint now and returns its number; GET /checkpoints/{id} tells how it ended",
    "GET /checkpoints/{id}": "shows one checkpoint: where its time went, by vertex, operator and subtask; its ledger",
    "GET /savepoints": "lists the job's savepoints, newest first",
    "POST /savepoints": "takes a savepoint and returns its name at once; GET /savepoints/{name} tells how it ended",
    "GET /savepoints/{name}": "shows one savepoint: its state, place, size, epoch and duration, or why it failed",
    "DELETE /savepoints/{name}": "deletes a savepoint of the job, wherever it is",
    "GET /stop": "shows the newest request to stop the job: how far it has come, or why the job goes on",
    "POST /stop": "stops the job behind a last epoch, which may also become a savepoint; the job goes on if that fails",
    "GET /restarts": "lists why and when attempts ended, newest first, and how long until the job ran again",
    "POST /rescale": "begins to run the job at another parallelism and returns an id; GET /rescales tells how it ended",
    "GET /rescales": "lists the rescales, newest first: from, to, pause, digests of the state before and after",
    "GET /gate": "shows the epoch that a commit gate holds, and the verdicts about the newest epoch",
    "POST /gate": "releases or discards the held epoch, or asks its gate again; GET /checkpoints/{id} tells the end",
    "GET /events": "lists what happened, oldest first; ?after_ms=0",
    "GET /upgrade": "shows the last upgrade of the job: its phase, versions, plan, why it did not succeed; null: none",
    "POST /upgrade": "begins to replace the job by another version and returns an id; GET /upgrade tells how it ended",
    "GET /rehearsal": "shows the last rehearsal that was asked for here: its phase, progress and verdict; null: none",
    "POST /rehearsal": "begins to run another version beside the job and returns an id; GET /rehearsal has the verdict",
    "GET /state/{uid}": "shows the state of a key in the newest epoch; ?key=ann, repeated for a key of several columns",
    "GET /metrics": "returns all figures in Prometheus' text format",
    "POST /gc": 'deletes what nobody needs of the job\'s snapshots and tables; {"dry_run": true} only lists it',
    "POST /cancel": "ends the job; its last epoch stays",
}


class Answering(Protocol):
    """The JobMaster process as HTTP sees it. The other methods run on the deciding thread only.

    `ask` runs one that changes nothing, `decide` runs `trigger`, `rescale`, `take_savepoint`, `stop_job` or `cancel`.
    `check_savepoint`, `list_savepoints`, `look_at_savepoint` and `delete_savepoint` use stores, `upgrade`, `rehearsal`,
    their requests and `want_stopped` use files: they run on any thread but the deciding one.
    """

    timeline: Timeline
    savepoints: SavepointRecords

    def ask(self, question: Callable[[], Any]) -> Any: ...

    def decide(self, command: Callable[[], Any]) -> Any: ...

    def status(self) -> JobStatus: ...

    def vertex(self, vertex_id: str) -> VertexStatus | None: ...

    def upgrade(self) -> UpgradeStatus | None: ...

    def request_upgrade(self, asked: AskedUpgrade) -> str | Refusal: ...

    def rehearsal(self) -> RehearsalStatus | None: ...

    def request_rehearsal(self, asked: AskedRehearsal) -> str | Refusal: ...

    def look_up(self, uid: str, key: Sequence[str]) -> StateOfKey | None:
        """Returns the state of a key; None: there is no epoch yet. It reads the store, so any thread may call it."""

    def trigger(self) -> int | None: ...

    def rescale(self, wanted: Scaling) -> Answer: ...

    def gate(self) -> GateStatus: ...

    def rule(self, checkpoint: int, ruling: Ruling) -> Refusal | None: ...

    def want_stopped(self) -> None: ...

    def cancel(self) -> bool: ...

    def collect(self, dry_run: bool) -> Collection:
        """Collects garbage. It runs on the caller's thread, beside the deciding one."""

    def take_savepoint(self, request: SavepointRequest) -> int | Refusal: ...

    def stop_job(self, request: StopRequest) -> Refusal | None: ...

    def check_savepoint(self, request: SavepointRequest) -> None: ...

    def list_savepoints(self, known: list[SavepointRecord]) -> list[SavepointRecord]: ...

    def look_at_savepoint(self, known: SavepointRecord) -> SavepointRecord: ...

    def delete_savepoint(self, place: str) -> None: ...


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
    handlers, rescaling, gate = _Handlers(process), RescaleRoutes(process), GateRoutes(process)
    upgrading = AskedRoutes(
        "upgrade", AskedUpgrade, _UPGRADE, lambda asked: process.request_upgrade(asked), lambda: process.upgrade()
    )
    rehearsing = AskedRoutes(
        "rehearsal",
        AskedRehearsal,
        _REHEARSAL,
        lambda asked: process.request_rehearsal(asked),
        lambda: process.rehearsal(),
    )
    by_route: Mapping[str, Callable[[Request], Awaitable[Response]]] = {
        "GET /": handlers.routes,
        "GET /job": handlers.job,
        "GET /job/vertices/{id}": handlers.vertex,
        "GET /checkpoints": handlers.checkpoints,
        "POST /checkpoints": handlers.trigger,
        "GET /checkpoints/{id}": handlers.checkpoint,
        "GET /savepoints": handlers.savepoints,
        "POST /savepoints": handlers.take_savepoint,
        "GET /savepoints/{name}": handlers.savepoint,
        "DELETE /savepoints/{name}": handlers.delete_savepoint,
        "GET /stop": handlers.last_stop,
        "POST /stop": handlers.stop,
        "GET /restarts": handlers.restarts,
        "POST /rescale": rescaling.rescale,
        "GET /rescales": rescaling.rescales,
        "GET /gate": gate.shown,
        "POST /gate": gate.rule,
        "GET /events": handlers.events,
        "GET /upgrade": upgrading.last,
        "POST /upgrade": upgrading.request,
        "GET /rehearsal": rehearsing.last,
        "POST /rehearsal": rehearsing.request,
        "GET /state/{uid}": handlers.state,
        "GET /metrics": handlers.metrics,
        "POST /gc": handlers.gc,
        "POST /cancel": handlers.cancel,
    }
    assert by_route.keys() == ROUTES.keys()
    routes = []
    for route, handler in by_route.items():
        method, path = route.split(" ")
        path = path.replace("vertices/{id}", "vertices/{id:path}").replace("state/{uid}", "state/{uid:path}")
        routes.append(Route(path, handler, methods=[method]))
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _explain, NoAnswer: _no_answer, WeirError: _refused, Exception: _failed},
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


async def _refused(request: Request, error: Exception) -> Response:
    return _error(409, str(error))


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

    async def savepoints(self, request: Request) -> Response:
        return _json(await self._savepoints())

    async def savepoint(self, request: Request) -> Response:
        return _json(await self._savepoint(request.path_params["name"]))

    async def delete_savepoint(self, request: Request) -> Response:
        found = await self._savepoint(request.path_params["name"])
        if found.state is not SavepointState.COMPLETED:
            why = found.reason or "there is nothing to delete"
            return _error(409, f"savepoint {found.savepoint!r} is {found.state.value}, so it was not deleted: {why}")
        await run_in_threadpool(self._process.delete_savepoint, found.place)
        return JSONResponse({"deleted": found.savepoint, "place": found.place})

    async def _savepoint(self, wanted: str) -> SavepointRecord:
        """Clients ask again and again while a savepoint is under way: this looks at no other one."""
        named = [one for one in await self._known_savepoints() if one.savepoint == wanted]
        if named:
            looked: SavepointRecord = await run_in_threadpool(self._process.look_at_savepoint, named[0])
            return looked
        found = next((one for one in await self._savepoints() if one.savepoint == wanted), None)
        if found is None:
            raise HTTPException(404, f"the job has no savepoint {_short(wanted)!r}; GET /savepoints lists them")
        return found

    async def _savepoints(self) -> list[SavepointRecord]:
        found: list[SavepointRecord] = await run_in_threadpool(
            self._process.list_savepoints, await self._known_savepoints()
        )
        return found

    async def _known_savepoints(self) -> list[SavepointRecord]:
        """Returns copies of what the JobMaster remembers, newest first."""
        known: list[SavepointRecord] = await self._ask(
            lambda: list(map(msgspec.structs.replace, self._process.savepoints.newest_first))
        )
        return known

    async def take_savepoint(self, request: Request) -> Response:
        wanted = _savepoint_of(await _body(request))
        await run_in_threadpool(self._process.check_savepoint, wanted)
        taken = await run_in_threadpool(self._process.decide, lambda: self._process.take_savepoint(wanted))
        if isinstance(taken, Refusal):
            return _error(409, taken.why)
        return JSONResponse({"savepoint": wanted.name, "checkpoint": taken}, status_code=202)

    async def last_stop(self, request: Request) -> Response:
        return _json(await self._ask(lambda: self._process.savepoints.stop))

    async def stop(self, request: Request) -> Response:
        asked = await _body(request)
        _check_fields(asked, "drain", "savepoint")
        part = asked.get("savepoint")
        if part is not None and not isinstance(part, dict):
            raise HTTPException(400, 'write {"savepoint": {"name": …, "to": …}}, or null for none')
        savepoint = None if part is None else _savepoint_of(part)
        if savepoint is not None:
            await run_in_threadpool(self._process.check_savepoint, savepoint)
        drain = asked.get("drain", False)
        if not isinstance(drain, bool):
            raise HTTPException(400, '"drain" is true or false')
        stop = StopRequest(drain, savepoint)
        refused = await run_in_threadpool(self._process.decide, lambda: self._process.stop_job(stop))
        if refused is not None:
            return _error(409, refused.why)
        return JSONResponse({"stopping": True, "savepoint": savepoint.name if savepoint else None}, status_code=202)

    async def restarts(self, request: Request) -> Response:
        return _json(await self._ask(lambda: self._process.timeline.restarts))

    async def events(self, request: Request) -> Response:
        after_ms = _number(request, "after_ms", 0)
        events = await self._ask(lambda: list(self._process.timeline.events))
        return _json([event for event in events if event.at_ms > after_ms])

    async def state(self, request: Request) -> Response:
        uid, key = request.path_params["uid"], request.query_params.getlist("key")
        try:
            found = await run_in_threadpool(self._process.look_up, uid, key)
        except NoSuchState as error:
            raise HTTPException(404, str(error)) from error
        except FileNotFoundError as error:
            raise NoAnswer("the epoch was replaced by newer ones while its state was read: ask again") from error
        if found is None:
            return _error(409, "the job has no epoch yet, so there is no state to show")
        return _json(found)

    async def metrics(self, request: Request) -> Response:
        status = await self._ask(self._process.status)
        return PlainTextResponse(exposition(status), headers={"content-type": CONTENT_TYPE})

    async def gc(self, request: Request) -> Response:
        body = await _body(request)
        dry_run = body.get("dry_run", False)
        if not isinstance(dry_run, bool) or set(body) - {"dry_run"}:
            raise HTTPException(400, 'send {"dry_run": true}, {"dry_run": false} or nothing')
        return _json(await run_in_threadpool(self._process.collect, dry_run))

    async def cancel(self, request: Request) -> Response:
        await run_in_threadpool(self._process.want_stopped)
        await run_in_threadpool(self._process.decide, self._process.cancel)
        return JSONResponse({"cancelling": True}, status_code=202)


async def _body(request: Request) -> dict[str, Any]:
    """Returns the JSON object that was sent; nothing is an empty one."""
    data = await request.body()
    try:
        return msgspec.json.decode(data, type=dict[str, Any]) if data.strip() else {}
    except msgspec.MsgspecError as error:
        raise HTTPException(400, f"the body is no JSON object: {error}") from error


def _check_fields(asked: Mapping[str, Any], *known: str) -> None:
    """Refuses a field that nobody reads: a job must not be stopped without the savepoint of a misspelt request."""
    if unknown := sorted(set(asked) - set(known)):
        raise HTTPException(400, f'there is no field "{unknown[0]}" here; there are: {", ".join(known)}')


def _savepoint_of(asked: Mapping[str, Any]) -> SavepointRequest:
    _check_fields(asked, "name", "to")
    try:
        return requested(asked, default_name())
    except WeirError as error:
        raise HTTPException(400, str(error)) from error


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
