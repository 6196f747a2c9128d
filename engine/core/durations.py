"""Durations: a text such as "10 s", "5 minutes" or "250 ms", an int of milliseconds, or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta

from engine.core.errors import JobError

Duration = str | int | timedelta

_UNITS_MS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONG_NAMES = {
    "millisecond": "ms",
    "milliseconds": "ms",
    "sec": "s",
    "second": "s",
    "seconds": "s",
    "minute": "min",
    "minutes": "min",
    "hour": "h",
    "hours": "h",
    "day": "d",
    "days": "d",
}


def to_ms(duration: Duration, what: str = "") -> int:
    """Returns whole milliseconds; raises a JobError for a negative duration or an unknown form. It begins with `what`.

    to_ms(lateness, "allowed_lateness")
    """
    signed_ms = to_signed_ms(duration, what)
    if signed_ms < 0:
        raise JobError(f"{_of(what)}{duration!r} is negative: a duration must be 0 or more")
    return signed_ms


def to_signed_ms(duration: Duration, what: str = "") -> int:
    """Returns whole milliseconds of a duration that may be negative, such as "-5 s"."""
    if isinstance(duration, timedelta):
        return round(duration.total_seconds() * 1000)
    if isinstance(duration, int) and not isinstance(duration, bool):
        return duration
    match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([a-z]+)\s*", duration) if isinstance(duration, str) else None
    unit = _LONG_NAMES.get(match[2], match[2]) if match is not None else ""
    if match is None or unit not in _UNITS_MS:
        raise JobError(
            f"{_of(what)}{duration!r} is not a duration: write a number and one of {', '.join(_UNITS_MS)}, as in "
            "'10 s' or '5 minutes'"
        )
    return round(float(match[1]) * _UNITS_MS[unit])


def _of(what: str) -> str:
    return f"{what}: " if what else ""
