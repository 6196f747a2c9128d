"""A login, an order and a payment of a user with nothing between them: whoever does not look wants no goods."""

from collections.abc import Callable
from typing import Any

from assets.order_brushing.source import CLICKS
from engine.api import CEP, Match, Pattern, StreamEnvironment
from engine.connectors.table import TableSink


def is_(what: str) -> Callable[[dict[str, Any]], bool]:
    return lambda click: bool(click["what"] == what)


BRUSHING = Pattern.begin("login").where(is_("login")).next("order").where(is_("order")).next("pay").where(is_("pay"))


def brushed(match: Match) -> dict[str, Any]:
    login, pay = match["login"][0], match["pay"][0]
    return {"user_id": login["user_id"], "login": login["ts"], "paid": pay["ts"]}


def job(env: StreamEnvironment) -> None:
    found = CEP.pattern(CLICKS.read(env).key_by("user_id"), BRUSHING)
    brushing = found.select(brushed, uid="brushing", schema="user_id long, login timestamp, paid timestamp")
    brushing.sink_to(TableSink("brushing"), uid="out")
