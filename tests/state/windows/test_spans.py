"""The arithmetic of windows: panes are not divided by any window, and each is kept as long as a window needs it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.state.windows.spans import Spans

SPANS = st.builds(Spans, st.integers(1, 40), st.integers(1, 40), st.integers(0, 39))
TIMES = st.integers(-1000, 1000)


def windows_of(spans: Spans, time_ms: int) -> list[int]:
    found = range(time_ms - spans.size_ms + 1, time_ms + 1)
    return [start for start in found if (start - spans.offset_ms) % spans.slide_ms == 0]


@given(SPANS, TIMES)
def test_all_times_of_a_pane_are_in_the_same_windows(spans: Spans, time_ms: int) -> None:
    pane = spans.pane(time_ms)
    assert pane <= time_ms < pane + spans.pane_ms
    windows = windows_of(spans, time_ms)
    for other in range(pane, pane + spans.pane_ms):
        assert windows_of(spans, other) == windows
    assert bool(spans.in_a_window(np.array([time_ms]))[0]) == bool(windows)
    assert spans.panes(np.array([time_ms])).tolist() == [pane]
    if windows:
        assert (spans.first_window(pane), spans.last_window(pane)) == (windows[0], windows[-1])


@given(SPANS, TIMES)
def test_the_first_open_window_is_the_first_that_has_not_fired(spans: Spans, watermark_ms: int) -> None:
    start = spans.first_open(watermark_ms)
    assert (start - spans.offset_ms) % spans.slide_ms == 0
    assert spans.due_ms(start) > watermark_ms >= spans.due_ms(start - spans.slide_ms)
