"""What a job may be restored from."""

from __future__ import annotations

import pytest

from engine.api import StreamEnvironment
from engine.graph.compatibility import incompatibility
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Manifest


@pytest.mark.promise("D7")
@pytest.mark.parametrize(("was", "refused"), [(128, False), (64, True)])
def test_key_groups_can_t_be_split_anew(was: int, refused: bool) -> None:
    env = StreamEnvironment()
    env.from_elements([{"x": 1}], "x long").print(uid="out")
    manifest = Manifest("job", 7, 9, AttemptId(1, 1), 0, was, [], [], [], {})
    why = incompatibility(env.build("job"), manifest)
    assert why == (
        "epoch 7 was taken with max_parallelism 64, the job now has 128: set it back to 64, "
        "because the state can't be moved to other key groups"
        if refused
        else None
    )
