"""The control plane with many slots: does what the JobMaster does grow with them, and no faster?

Topology: source → keyed window → table, 100 and 200 subtasks each; the real JobMaster, epoch log and table, simulated
slots, virtual time. Faults: one slot is lost. Checks: counts of messages, bytes and executed lines; never time.
"""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pyarrow as pa

import engine
from benchmarks.controlplane import ControlPlane, Meter
from engine.core.ports import Frame
from engine.protocol.alignment.aligned import AlignedBarriers
from engine.protocol.ids import AttemptId, ChannelId
from engine.protocol.signals import Watermark
from engine.runtime.exchange.gate import InputGate
from tests.fakes import FakeTransport

ENGINE = next(iter(engine.__path__))
FEW, MANY = 100, 200
LINEAR = 2.1
"""Twice the slots, twice the work; and a little that is rounded."""


def lived(slots: int) -> ControlPlane:
    plane = ControlPlane(slots, Meter(clock=lambda: 0.0))
    plane.run(checkpoints=1)
    return plane


def lines_by_function(work: Callable[[], Any]) -> Counter[str]:
    """How many lines of the engine were executed, a comprehension's once for each item."""
    lines: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if event == "line":
            lines[f"{code.co_filename.removeprefix(ENGINE)}:{code.co_qualname}"] += 1
        return trace if code.co_filename.startswith(ENGINE) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def test_two_hundred_slots_complete_a_checkpoint_lose_one_slot_recover_and_finish() -> None:
    plane = lived(MANY)
    kinds = [kind for _, kind in plane.notes]
    assert plane.master.stats.restarts == 1
    assert plane.master.stats.checkpoints_failed == 0
    assert kinds.count("completed") == 3  # before the loss, after it, and the final one
    assert kinds.count("deploying") == kinds.count("running") == 2
    assert plane.meter.sent["Deploy"] == 2 * MANY
    assert plane.meter.sent["Rollback"] == MANY - 1
    assert plane.meter.received["Acknowledge"] == 3 * 2 * MANY


def test_messages_grow_with_the_slots() -> None:
    few, many = lived(FEW).meter, lived(MANY).meter
    assert many.messages <= LINEAR * few.messages
    for kind in many.sent | many.received:
        assert (many.sent | many.received)[kind] <= LINEAR * (few.sent | few.received)[kind] + 2, kind


def test_only_the_addresses_in_a_deployment_grow_with_the_square_of_the_slots() -> None:
    few, many = lived(FEW).meter, lived(MANY).meter
    faster = {kind for kind, size in many.wire_bytes.items() if size > LINEAR * few.wire_bytes[kind] + 200}
    assert faster == {"Deploy"}


def test_no_part_of_the_engine_looks_at_every_slot_for_every_message() -> None:
    few, many = lines_by_function(lambda: lived(FEW)), lines_by_function(lambda: lived(MANY))
    faster = {name: (few[name], count) for name, count in many.items() if count > LINEAR * few[name] + 50}
    assert not faster


def rounds_through_a_gate(channels: int) -> None:
    """Three times a small batch and a watermark from every sender."""
    ids = [ChannelId("edge", sender, 0) for sender in range(channels)]
    gate = InputGate(AttemptId(1, 1), ids, AlignedBarriers(channels), FakeTransport())
    gate.start()
    batch = pa.record_batch({"key": [1, 2, 3]})
    for number in range(3):
        for channel in ids:
            gate.receive(channel, Frame(2 * number + 1, batch, batch.nbytes, 0))
            gate.receive(channel, Frame(2 * number + 2, Watermark(number), 0, 0))
        while gate.poll(100, 0.0) is not None:
            pass


def test_a_gate_does_not_look_at_every_channel_for_every_batch_and_watermark() -> None:
    few = lines_by_function(lambda: rounds_through_a_gate(FEW))
    many = lines_by_function(lambda: rounds_through_a_gate(MANY))
    assert not {name: (few[name], count) for name, count in many.items() if count > LINEAR * few[name] + 50}
