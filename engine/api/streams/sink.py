"""`DataStreamSink`: the end of a stream."""

from __future__ import annotations

from engine.api.streams.placement import Placed


class DataStreamSink(Placed):
    """The end of a stream; `sink_to` and `print` return it. Its parallelism and slots can still be set."""
