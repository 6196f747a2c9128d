"""Ends every process of a job in `engine.testing` at one call of a method, once."""

from __future__ import annotations

from typing import Any

import pytest


class Died(BaseException):
    """Ends every process of the job at once. Not an Exception, so no code of the job catches it."""


def die_once(monkeypatch: pytest.MonkeyPatch, of: type, name: str, call: int, before: bool) -> None:
    """Ends all processes at the given call of a method, once: before it does anything, or when it is done."""
    real = getattr(of, name)
    calls = 0

    def dying(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if before and calls == call:
            raise Died
        result = real(*args)
        if calls == call:
            raise Died
        return result

    monkeypatch.setattr(of, name, dying)
