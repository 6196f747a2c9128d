"""The contract of control streams (`Control` in `engine/core/ports.py`): Arrow Flight, and the simulator's `Link`.

Topology: one JobMaster's end, two slots' ends. Faults: a stream that breaks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.network.control import ControlClient, ControlServer
from engine.protocol.ids import AttemptId
from engine.protocol.messages import (
    Deployed,
    MasterMessage,
    SlotMessage,
    Start,
    decode_master_message,
    decode_slot_message,
    encode,
)
from tests.simulation.ports import Link, NetworkFaults
from tests.simulation.world import Process, World

MESSAGES = 200


def up(number: int) -> SlotMessage:
    return Deployed(AttemptId(1, number))


def down(number: int) -> MasterMessage:
    return Start(AttemptId(1, number))


class Ends:
    """What the two ends of two control streams have heard."""

    def __init__(self) -> None:
        self.at_master: dict[str, list[SlotMessage]] = {"s0": [], "s1": []}
        self.at_slot: dict[str, list[MasterMessage]] = {"s0": [], "s1": []}
        self.gone: list[str] = []
        self.lost: list[str] = []


class Flight(Ends):
    def __init__(self) -> None:
        super().__init__()
        self._server = ControlServer(
            "job",
            "127.0.0.1",
            "token",
            lambda session, message: self.at_master[session].append(message),
            lambda session, why: self.gone.append(session),
        )
        self._clients = {session: self._client(session) for session in self.at_slot}
        for session in self._clients:  # a stream is there once its first message has arrived
            self.up(session, up(0))
        self.until(lambda: all(self.at_master.values()))
        for heard in self.at_master.values():
            heard.clear()

    def _client(self, session: str) -> ControlClient:
        heard, lost = self.at_slot[session].append, self.lost.append
        return ControlClient("job", session, self._server.address, "token", heard, lambda why: lost(session))

    def up(self, session: str, message: SlotMessage) -> None:
        self._clients[session].send(message)

    def down(self, session: str, message: MasterMessage) -> None:
        self._server.send(session, message)

    def until(self, over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not over():
            assert time.monotonic() < deadline, "nothing came in 60 s"
            time.sleep(0.005)

    def settle(self) -> None:
        time.sleep(0.2)

    def breaks(self, session: str) -> None:
        self._clients[session]._reader.cancel()

    def end(self) -> None:
        for client in self._clients.values():
            client.close()
        self.until(lambda: len(self.gone) >= len(self._clients))
        self._server.close(5.0)


class _Slot(Process):
    def __init__(self, ends: Simulated, name: str) -> None:
        super().__init__(ends.world, name)
        self.session, self._ends = name, ends

    def receive(self, data: bytes) -> None:
        self._ends.at_slot[self.session].append(decode_master_message(data))

    def ends(self) -> None:
        self._ends.lost.append(self.session)


class _Master(Process):
    def __init__(self, ends: Simulated) -> None:
        super().__init__(ends.world, "master")
        self._ends = ends

    def receive(self, link: Link, data: bytes) -> None:
        self._ends.at_master[link.slot.session].append(decode_slot_message(data))

    def slot_gone(self, session: str) -> None:
        self._ends.gone.append(session)


class Simulated(Ends):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(2)
        self.world.calm_ms = 1e9  # delays vary
        master: Any = _Master(self)
        slots: dict[str, Any] = {name: _Slot(self, name) for name in self.at_slot}
        self._links = {
            name: Link(self.world, slot, master, NetworkFaults(), typical_ms=1.0) for name, slot in slots.items()
        }

    def up(self, session: str, message: SlotMessage) -> None:
        self._links[session].to_master(encode(message), type(message).__name__)

    def down(self, session: str, message: MasterMessage) -> None:
        if session in self._links:
            self._links[session].to_slot(encode(message), type(message).__name__)

    def until(self, over: Callable[[], bool]) -> None:
        assert self.world.run(over, 1e6, 100_000)

    def settle(self) -> None:
        self.world.run(lambda: False, self.world.now_ms + 10_000, 100_000)

    def breaks(self, session: str) -> None:
        self._links[session].breaks()

    def end(self) -> None: ...


@pytest.fixture(params=[Flight, Simulated])
def ends(request: pytest.FixtureRequest) -> Iterator[Flight | Simulated]:
    made = request.param()
    yield made
    made.end()


def test_messages_arrive_in_order_each_way_and_streams_do_not_mix(ends: Flight | Simulated) -> None:
    for number in range(MESSAGES):
        ends.up("s0", up(number))
        ends.up("s1", up(-number))
        ends.down("s0", down(number))
        ends.down("s1", down(-number))
    heard = (*ends.at_master.values(), *ends.at_slot.values())
    ends.until(lambda: all(len(messages) == MESSAGES for messages in heard))
    assert ends.at_master["s0"] == [up(number) for number in range(MESSAGES)]
    assert ends.at_master["s1"] == [up(-number) for number in range(MESSAGES)]
    assert ends.at_slot["s0"] == [down(number) for number in range(MESSAGES)]
    assert ends.at_slot["s1"] == [down(-number) for number in range(MESSAGES)]


def test_both_ends_hear_that_a_stream_broke_and_the_other_stream_goes_on(ends: Flight | Simulated) -> None:
    ends.breaks("s0")
    ends.until(lambda: bool(ends.gone and ends.lost))
    ends.up("s1", up(1))
    ends.down("s1", down(1))
    ends.until(lambda: bool(ends.at_master["s1"]) and bool(ends.at_slot["s1"]))
    ends.settle()
    assert set(ends.gone) == set(ends.lost) == {"s0"}


def test_what_is_sent_on_a_broken_stream_arrives_nowhere_and_raises_nothing(ends: Flight | Simulated) -> None:
    ends.breaks("s0")
    ends.until(lambda: bool(ends.gone and ends.lost))
    ends.up("s0", up(1))
    ends.down("s0", down(1))
    ends.settle()
    assert ends.at_master["s0"] == [] and ends.at_slot["s0"] == []


def test_a_message_to_a_slot_that_nobody_knows_is_dropped(ends: Flight | Simulated) -> None:
    ends.down("nobody", down(1))
    ends.settle()
    assert not any(ends.at_slot.values())
