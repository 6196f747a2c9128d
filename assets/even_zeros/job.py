"""Whether a text has an even number of zeros: the seeds' finite state machine, one machine per text.

A zero changes the state. The order of the digits makes no difference, but the last one may arrive before others. So the
answer is given when the watermark has reached the last digit's time.
"""

from collections.abc import Iterable
from typing import Any

from assets.even_zeros.source import TEXTS
from engine.api import (
    KeyedProcessFunction,
    OnTimerContext,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
)
from engine.connectors.table import TableSink


class EvenZeros(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self._odd = context.get_state(ValueStateDescriptor("odd", "boolean"))

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        if value["digit"] == "0":
            self._odd.update(not self._odd.value())
        if value["last"]:
            last_ms = context.timestamp()
            assert last_ms is not None
            context.timer_service().register_event_time_timer(last_ms)
        return ()

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Any]:
        yield {"text_id": context.get_current_key(), "even": not self._odd.value()}
        self._odd.clear()


def job(env: StreamEnvironment) -> None:
    texts = TEXTS.read(env).key_by("text_id")
    texts.process(EvenZeros(), uid="zeros", schema="text_id long, even boolean").sink_to(TableSink("texts"), uid="out")
