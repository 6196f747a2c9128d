"""Dagster's webserver with one more address: `/data_docs/…` leads to where `make ui` serves Data Docs this time.

Dagster keeps the links of drills and rehearsals for ever, and the next `make ui` may have other ports. So the links
name no port. The pages stay on a port of their own: they hold rows of users' tables, and must not be able to act as the
UI.
"""

from __future__ import annotations

import os
from urllib.parse import quote

import dagster_webserver.app
from dagster_webserver.cli import main
from dagster_webserver.webserver import DagsterWebserver
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from orchestration.ui import DATA_DOCS, DATA_DOCS_URL


class Webserver(DagsterWebserver):  # type: ignore[type-arg]
    def build_routes(self) -> list[BaseRoute]:
        return [Route(f"{DATA_DOCS}/{{page:path}}", _data_docs), *super().build_routes()]  # type: ignore[no-untyped-call]


async def _data_docs(request: Request) -> Response:
    served = os.environ.get(DATA_DOCS_URL)
    if not served:
        return PlainTextResponse("Data Docs are served by `make ui` only", status_code=404)
    return RedirectResponse(f"{served}/{quote(request.path_params['page'])}")


if __name__ == "__main__":
    # The command line has no place for further routes.
    dagster_webserver.app.DagsterWebserver = Webserver  # type: ignore[attr-defined]
    main()  # type: ignore[no-untyped-call]
