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


def to_ms(duration: Duration) -> int:
    """Returns whole milliseconds; raises a JobError for a negative duration or an unknown form."""
    if isinstance(duration, timedelta):
        return _positive(round(duration.total_seconds() * 1000), duration)
    if isinstance(duration, int) and not isinstance(duration, bool):
        return _positive(duration, duration)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", duration) if isinstance(duration, str) else None
    unit = _LONG_NAMES.get(match[2], match[2]) if match is not None else ""
    if match is None or unit not in _UNITS_MS:
        raise JobError(
            f"{duration!r} is not a duration: write a number and one of {', '.join(_UNITS_MS)}, as in '10 s' or "
            "'5 minutes'"
        )
    return round(float(match[1]) * _UNITS_MS[unit])


def _positive(milliseconds: int, duration: Duration) -> int:
    if milliseconds < 0:
        raise JobError(f"{duration!r} is negative: a duration must be 0 or more")
    return milliseconds
