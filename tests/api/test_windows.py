"""Window assigners."""

import pytest

from engine.api import JobError, TumblingEventTimeWindows


def test_a_window_has_a_length() -> None:
    assert TumblingEventTimeWindows.of("10 s").size_ms == 10_000
    with pytest.raises(JobError, match="a window of '0 s' has no length"):
        TumblingEventTimeWindows.of("0 s")
