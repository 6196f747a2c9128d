"""Names the operator whose code runs now. The chain sets it around each call; logging and error reports read it."""

from __future__ import annotations

from contextvars import ContextVar

from engine.runtime.operators.base import OperatorContext

RUNNING: ContextVar[OperatorContext | None] = ContextVar("weir_running_operator", default=None)
"""Offloaded work inherits it. A call that raises does not reset it, so it names the operator that failed."""
