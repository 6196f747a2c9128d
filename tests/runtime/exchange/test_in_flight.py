"""Data in flight is bounded by time: a gate grants about as much as it consumes in `in_flight_target`.

Topology: one source that always has rows, one receiver that takes a fixed time per row; time is the test's. Checks: how
long a barrier that enters the source's output now waits behind rows, at several speeds of the receiver.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from engine.protocol.alignment.aligned import AlignedBarriers
from engine.protocol.credits import CHANNEL_BYTES, GateCredit
from engine.protocol.ids import AttemptId, ChannelId
from engine.protocol.pace import Pace
from engine.runtime.exchange.channels import OutputChannel
from engine.runtime.exchange.gate import InputGate
from tests.fakes import FakeTransport

ATTEMPT, CHANNEL = AttemptId(1, 1), ChannelId("a->b", 0, 0)
ROWS = pa.record_batch({"n": pa.array(range(1024), pa.int64())})


class Loop:
    """Sender and receiver, stepped by hand. `row_ms`: what the receiver needs for a row."""

    def __init__(self, row_ms: float) -> None:
        self.row_ms = row_ms
        self.now_ms = 0.0
        self.transport = FakeTransport()
        self.gate = InputGate(ATTEMPT, [CHANNEL], AlignedBarriers(1), self.transport, in_flight_target_ms=200)
        self.sender = OutputChannel(ATTEMPT, CHANNEL, self.transport)
        self.in_flight_rows = 0
        self.gate.start()

    def run(self, until_ms: float) -> None:
        while self.now_ms < until_ms:
            self._exchange()
            taken = self.gate.poll(64, self.now_ms)
            assert isinstance(taken, pa.RecordBatch)
            self.in_flight_rows -= taken.num_rows
            self.now_ms += self.row_ms * taken.num_rows

    def _exchange(self) -> None:
        for _, total in self.transport.grants:
            self.sender.on_grant(total)
        self.transport.grants.clear()
        self.sender.flush()
        while not self.sender.blocked:
            self.sender.emit(ROWS)
            self.in_flight_rows += ROWS.num_rows
        for channel, frame in self.transport.sent:
            self.gate.receive(channel, frame)
        self.transport.sent.clear()

    @property
    def wait_ms(self) -> float:
        return self.in_flight_rows * self.row_ms


@pytest.mark.promise("E1", "E3")
@pytest.mark.parametrize("rows_per_s", [2_000, 12_000, 60_000, 500_000])
def test_a_barrier_waits_about_the_target_behind_the_rows_of_a_slow_receiver(rows_per_s: int) -> None:
    loop = Loop(1000 / rows_per_s)
    loop.run(4_000 if rows_per_s < 100_000 else 800)
    one_batch_ms = ROWS.num_rows * loop.row_ms
    assert loop.wait_ms <= 2 * 200 + 4 * one_batch_ms


def test_a_fast_gate_grants_up_to_the_byte_bound() -> None:
    loop = Loop(1e-4)  # 10 M rows/s, 80 MB/s
    loop.run(250)
    assert loop.gate._credit.hold == CHANNEL_BYTES // 4


def test_a_starved_gate_is_not_taken_for_a_slow_one() -> None:
    pace = Pace(200)
    for second in range(10):
        pace.took(1000, 1000.0 * second)
        assert pace.look(1000.0 * second + 1) is None  # one busy ms each; the wait for data does not count
    pace.took(90_000, 20_000.0)
    assert pace.look(20_090.0) == 200_000  # 100,000 bytes in 100 busy ms


def test_a_lower_bound_revokes_nothing_and_grants_go_on_when_the_queue_has_drained() -> None:
    credit = GateCredit(1)
    ((_, granted),) = credit.grants(1)
    credit.bound(64 << 10)
    assert credit.grants(credit.hold) == []
    credit.on_consumed(0, granted)
    ((_, again),) = credit.grants(credit.hold)
    assert again - granted == 32 << 10
