"""Three failed logins of a user in a row. A fourth one is a second alert: it and the two before it are three, too."""

from typing import Any

from assets.failed_logins.source import LOGINS
from engine.api import CEP, Match, Pattern, StreamEnvironment
from engine.connectors.table import TableSink

FAILED = Pattern.begin("failed").where(lambda login: not login["ok"]).times(3).consecutive()


def alert(match: Match) -> dict[str, Any]:
    first, _, last = match["failed"]
    return {"user_id": first["user_id"], "since": first["ts"], "until": last["ts"]}


def job(env: StreamEnvironment) -> None:
    found = CEP.pattern(LOGINS.read(env).key_by("user_id"), FAILED)
    alerts = found.select(alert, uid="alerts", schema="user_id long, since timestamp, until timestamp")
    alerts.sink_to(TableSink("alerts"), uid="out")
