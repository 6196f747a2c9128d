"""Connected streams: what can be connected. Whole jobs with broadcast state are in tests/test_operator_state.py."""

import pyarrow as pa
import pytest

from engine.api import (
    BroadcastProcessFunction,
    CoMapFunction,
    JobError,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    StreamEnvironment,
)
from engine.testing import ListSource

RULES = MapStateDescriptor("rules", pa.string(), pa.int64())


def test_what_can_not_be_connected_is_told() -> None:
    env, other = StreamEnvironment(), StreamEnvironment()
    stream, elsewhere = (e.from_source(ListSource([]), "app string", uid="rules") for e in (env, other))
    keyed = stream.key_by("app")
    with pytest.raises(JobError, match=r"needs a broadcast stream, .*rules.broadcast\(MapStateDescriptor"):
        stream.connect(stream.broadcast()).process(BroadcastProcessFunction())  # type: ignore[arg-type]
    with pytest.raises(JobError, match=r"the other one has none: call key_by\(...\) on it, too, or broadcast it"):
        keyed.connect(stream)  # type: ignore[call-overload]
    with pytest.raises(JobError, match=r"call key_by\(...\) on both, or on none"):
        stream.connect(keyed)  # type: ignore[call-overload]
    for connect in (
        lambda: keyed.connect(elsewhere.broadcast(RULES)),
        lambda: keyed.connect(elsewhere.key_by("app")),
        lambda: stream.connect(elsewhere),
        lambda: stream.union(elsewhere),
    ):
        with pytest.raises(JobError, match="two streams belong to different environments"):
            connect()
    numbered = env.from_source(ListSource([]), "n long", uid="numbered")
    with pytest.raises(JobError, match=r"keyed by \(app string\) and by \(n int64\): compute equal ones with select"):
        keyed.connect(numbered.key_by("n"))
    with pytest.raises(JobError, match=r"\(app string\) and \(n int64\), so declare the fields .* with schema="):
        stream.connect(numbered).map(CoMapFunction())
    with pytest.raises(JobError, match=r"'rules' \(test_connected.* \(app string, without event time\), 'numbered'"):
        stream.union(numbered)


def test_a_side_output_must_be_one_that_the_operator_can_have() -> None:
    env = StreamEnvironment()
    stream = env.from_source(ListSource([]), "n long", uid="numbers")
    late = OutputTag("late", "n long")
    with pytest.raises(JobError, match=r"'map-1' \(test_connected.py, line .* has no side output 'late'; it has: none"):
        stream.map(lambda row: row).get_side_output(late)
    processed = stream.process(ProcessFunction())
    processed.get_side_output(late)
    processed.get_side_output(OutputTag("late", "n long"))
    with pytest.raises(JobError, match=r"two tags of .* are named 'late', with .*n int64.* and .*n string"):
        processed.get_side_output(OutputTag("late", "n string"))
