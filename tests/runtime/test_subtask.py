"""One subtask of a source: what it tells its receivers beside its rows.

Topology: a source whose splits turn up one after the other → key_by → running sum → table, in one slot.
"""

import pyarrow as pa
import pytest

from engine.api import StreamEnvironment
from engine.connectors.table import TableSink
from engine.core.paths import JobPaths
from engine.graph.execution_graph import ExecutionGraph
from engine.protocol.signals import StreamStatus
from engine.runtime.deployment import Deployer
from tests.fakes import ATTEMPT, JOB_ID, FakeClock, FakeOffload, FakeTransport, MemoryStore
from tests.runtime.test_source_head import Growing


@pytest.mark.promise("B2")
def test_a_source_that_was_idle_says_that_it_is_not_before_its_next_rows() -> None:
    """Receivers ignore the watermark of an idle input: rows that follow without a word would be late at once."""
    source = Growing([["0"], [], [], ["1"]], {"0": [[1]], "1": [[2]]})
    env = StreamEnvironment(parallelism=1)
    env.from_source(source, "ts long", uid="src").key_by("ts").sum("ts", uid="sum").sink_to(TableSink("t"), uid="out")
    plan = ExecutionGraph(env.graph.translate("job", env.checkpoints, env.restart, env.max_parallelism, "")).plan(0)
    transport = FakeTransport()
    deployer = Deployer(
        JobPaths("job"), FakeClock(), transport, FakeOffload(), MemoryStore(), lambda *_: None, lambda _: None
    )
    deployment = deployer.deploy(ATTEMPT, JOB_ID, plan, None)
    for output in deployment.outputs.values():
        output.on_grant(1 << 30)
    for _ in range(6):
        deployment.subtasks[0].step()
    elements = [frame.element for _, frame in transport.sent]
    told = [e.column("ts").to_pylist() if isinstance(e, pa.RecordBatch) else e for e in elements]
    assert told == [[1], StreamStatus(True), StreamStatus(False), [2], StreamStatus(True)]
