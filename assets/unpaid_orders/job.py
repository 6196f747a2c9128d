"""Orders that are not paid in 15 minutes.

Records of an order may come in any order, from two splits. So nothing is decided before the watermark has passed: when
the timer of a payment or of the end of an order's time fires, everything that happened before has come.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from assets.unpaid_orders.source import EVENTS
from engine.api import (
    KeyedProcessFunction,
    OnTimerContext,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
)
from engine.connectors.table import TableSink

IN_TIME = timedelta(minutes=15)
MS = timedelta(milliseconds=1)


class Unpaid(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self._ordered = context.get_state(ValueStateDescriptor("ordered", "timestamp"))
        self._due_ms = context.get_state(ValueStateDescriptor("due_ms", "long"))
        self._paid_ms = context.get_state(ValueStateDescriptor("paid_ms", "long"))

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        now_ms, timers = context.timestamp(), context.timer_service()
        assert now_ms is not None
        if value["what"] == "order":
            self._ordered.update(value["ts"])
            self._due_ms.update(now_ms + IN_TIME // MS)
            timers.register_event_time_timer(now_ms + IN_TIME // MS)
        elif value["what"] == "pay":
            self._paid_ms.update(now_ms)
            timers.register_event_time_timer(now_ms)
        return ()

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Any]:
        due_ms, paid_ms, ordered = self._due_ms.value(), self._paid_ms.value(), self._ordered.value()
        if due_ms is None:  # a payment too late: the order is closed
            self._paid_ms.clear()
        elif paid_ms is not None and paid_ms < due_ms:
            context.timer_service().delete_event_time_timer(due_ms)
            self._close()
        elif timestamp == due_ms:
            assert ordered is not None
            self._close()
            yield {"order_id": context.get_current_key(), "ordered": ordered, "due": ordered + IN_TIME}

    def _close(self) -> None:
        for state in (self._ordered, self._due_ms, self._paid_ms):
            state.clear()


def job(env: StreamEnvironment) -> None:
    orders = EVENTS.read(env).key_by("order_id")
    unpaid = orders.process(Unpaid(), uid="unpaid", schema="order_id long, ordered timestamp, due timestamp")
    unpaid.sink_to(TableSink("unpaid"), uid="out")
