"""One subtask of a source: what it tells its receivers beside its rows, and when its slot has to wake up for it.

Topology: a source whose splits turn up one after the other → key_by → running sum → table, in one slot.
"""

import pyarrow as pa
import pytest

from engine.api import StreamEnvironment, WatermarkGenerator, WatermarkOutput, WatermarkStrategy
from engine.connectors.table import TableSink
from engine.core.paths import JobPaths
from engine.graph.execution_graph import ExecutionGraph
from engine.protocol.signals import StreamStatus
from engine.runtime.deployment import Deployer, Deployment
from engine.runtime.subtask import Activity
from tests.fakes import ATTEMPT, JOB_ID, FakeClock, FakeOffload, FakeTransport, MemoryStore
from tests.runtime.test_source_head import Growing


class Periodic(WatermarkGenerator):
    def on_periodic_emit(self, output: WatermarkOutput) -> None: ...


def deployed(source: Growing, clock: FakeClock, transport: FakeTransport, *, generates: bool = False) -> Deployment:
    env = StreamEnvironment(parallelism=1)
    stream = env.from_source(source, "ts long", uid="src")
    if generates:
        strategy = WatermarkStrategy.for_generator(lambda context: Periodic(), emit_interval="5 ms")
        stream = stream.select("ts").assign_timestamps_and_watermarks(strategy.with_timestamps("ts"))
    stream.key_by("ts").sum("ts", uid="sum").sink_to(TableSink("t"), uid="out")
    plan = ExecutionGraph(env.graph.translate("job", env.checkpoints, env.restart, env.max_parallelism, "")).plan(0)
    deployer = Deployer(
        JobPaths("job"), clock, transport, FakeOffload(), MemoryStore(), lambda *_: None, lambda _: None
    )
    return deployer.deploy(ATTEMPT, JOB_ID, plan, None)


@pytest.mark.promise("B2")
def test_a_source_that_was_idle_says_that_it_is_not_before_its_next_rows() -> None:
    """Receivers ignore the watermark of an idle input: rows that follow without a word would be late at once."""
    source = Growing([["0"], [], [], ["1"]], {"0": [[1]], "1": [[2]]})
    transport = FakeTransport()
    deployment = deployed(source, FakeClock(), transport)
    for output in deployment.outputs.values():
        output.on_grant(1 << 30)
    for _ in range(6):
        deployment.subtasks[0].step()
    elements = [frame.element for _, frame in transport.sent]
    told = [e.column("ts").to_pylist() if isinstance(e, pa.RecordBatch) else e for e in elements]
    assert told == [[1], StreamStatus(True), StreamStatus(False), [2], StreamStatus(True)]


@pytest.mark.promise("B1", "E1")
def test_a_source_wakes_its_slot_as_soon_as_it_wants_to_be_polled_or_something_behind_it_is_due() -> None:
    """It wants to be asked for splits at 7 ms. A generator behind it is due every 5 ms: that hid the earlier moment."""
    clock = FakeClock()
    subtask = deployed(Growing([[], []], {"0": []}), clock, FakeTransport(), generates=True).subtasks[0]
    subtask.step()
    assert subtask.wakeup_ms == 5.0
    clock.pass_ms(6.0)
    subtask.step()
    assert subtask.wakeup_ms == 7.0


@pytest.mark.promise("A9")
def test_a_source_whose_receivers_take_nothing_does_not_keep_its_slot_busy() -> None:
    """What is due behind it can't be done before they do. The slot asked again and again, and took a whole core."""
    clock = FakeClock()
    deployment = deployed(Growing([["0"]], {"0": [[1], [2], [3]]}), clock, FakeTransport(), generates=True)
    subtask = deployment.subtasks[0]
    for _ in range(4):
        subtask.step()
    clock.pass_ms(100.0)
    assert subtask.step() is Activity.BACK_PRESSURED and subtask.wakeup_ms is None
    for output in deployment.outputs.values():
        output.on_grant(1 << 30)
    assert subtask.step() is Activity.BUSY and subtask.wakeup_ms is not None
