"""Which operator's code runs now: set around every call of one, once per batch; read by whoever logs or reports."""

from __future__ import annotations

from contextvars import ContextVar

from engine.runtime.operators.base import OperatorContext

RUNNING: ContextVar[OperatorContext | None] = ContextVar("weir_running_operator", default=None)
"""Offloaded work inherits it. Where a call raises it is left as it is, so that it names the operator that failed."""
