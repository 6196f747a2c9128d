"""Window assigners."""

import pytest

from engine.api import JobError, TumblingEventTimeWindows


def test_a_window_has_a_length() -> None:
    assert TumblingEventTimeWindows.of("10 s").size_ms == 10_000
    with pytest.raises(JobError, match="the size of a window must be positive, not '0 s'"):
        TumblingEventTimeWindows.of("0 s")
