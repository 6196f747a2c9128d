"""Window assigners."""

import pytest

from engine.api import JobError, SlidingEventTimeWindows, TumblingEventTimeWindows
from engine.state.windows.spans import Spans


def test_a_window_has_a_length() -> None:
    assert TumblingEventTimeWindows.of("10 s").spans == Spans(10_000, 10_000)
    with pytest.raises(JobError, match="the size of a window must be positive, not '0 s'"):
        TumblingEventTimeWindows.of("0 s")


@pytest.mark.promise("B4")
def test_sliding_windows_have_a_size_and_a_slide() -> None:
    assert SlidingEventTimeWindows.of("1 h", "5 min").spans == Spans(3_600_000, 300_000)
    with pytest.raises(JobError, match="the slide of a window must be positive, not 0"):
        SlidingEventTimeWindows.of("1 h", 0)


@pytest.mark.promise("B4")
def test_windows_may_start_at_an_offset_that_is_shorter_than_they_are() -> None:
    assert TumblingEventTimeWindows.of("1 d", "16 h").spans.offset_ms == 16 * 3_600_000
    assert str(TumblingEventTimeWindows.of("1 d", "16 h")).endswith("shifted by 57600000 ms")
    with pytest.raises(JobError, match="must be shorter than their size, and '10 s' is not"):
        TumblingEventTimeWindows.of("10 s", "10 s")
    with pytest.raises(JobError, match="must be shorter than their slide, and '6 min' is not"):
        SlidingEventTimeWindows.of("1 h", "5 min", "6 min")
