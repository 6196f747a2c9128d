"""Notices that Spark is gone: its JVM died, its SparkContext was stopped, or it does not answer.

Spark's own calls do not tell: in a stopped JVM they wait for ever, and slots go on without it until one is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.protocol.supervision import Silence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ASK_S = 0.5


class SparkWatch:
    """Asks Spark all the time. Calls `on_lost` once, on a thread of its own."""

    def __init__(self, stopped: Callable[[], bool], patience_s: float, on_lost: Callable[[str], None]) -> None:
        self._stopped = stopped
        self._patience_s = patience_s
        self._on_lost = on_lost
        self._silence = Silence()
        self._over = threading.Event()
        self._lock = threading.Lock()

    def start(self) -> None:
        for target, name in ((self._ask, "asks Spark"), (self._look, "watches Spark")):
            threading.Thread(target=target, name=name, daemon=True).start()

    def stop(self) -> None:
        with self._lock:
            self._over.set()

    def _ask(self) -> None:
        while not self._over.is_set():
            try:
                stopped = self._stopped()
            except Exception as error:
                self._lose(f"Spark's JVM is gone: {type(error).__name__}: {error}")
                return
            if stopped:
                self._lose("the SparkContext was stopped")
                return
            self._silence.heard()
            self._over.wait(ASK_S)

    def _look(self) -> None:
        while not self._over.wait(ASK_S):
            if self._silence.look(time.monotonic() * 1000) > self._patience_s * 1000:
                self._lose(f"Spark's JVM did not answer for {self._patience_s:.0f} s")
                return

    def _lose(self, why: str) -> None:
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
        self._on_lost(why)


def stopped(session: SparkSession) -> bool:
    """Asks Spark whether its context was stopped; raises an error if the JVM is gone."""
    context = session.sparkContext
    return context._jsc is None or bool(context._jsc.sc().isStopped())
