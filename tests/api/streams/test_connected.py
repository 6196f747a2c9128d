"""Connected streams: what can be connected. Whole jobs with broadcast state are in tests/test_operator_state.py."""

import pyarrow as pa
import pytest

from engine.api import JobError, MapStateDescriptor, StreamEnvironment
from engine.testing import ListSource

RULES = MapStateDescriptor("rules", pa.string(), pa.int64())


def test_what_can_not_be_connected_is_told() -> None:
    env, other = StreamEnvironment(), StreamEnvironment()
    stream, elsewhere = (e.from_source(ListSource([]), "app string", uid="rules") for e in (env, other))
    with pytest.raises(JobError, match=r"connect takes a broadcast stream, .*rules.broadcast\(MapStateDescriptor"):
        stream.connect(stream.broadcast())  # type: ignore[arg-type]
    with pytest.raises(JobError, match="two streams belong to different environments"):
        stream.key_by("app").connect(elsewhere.broadcast(RULES))
