"""Goal: a channel between two slots shows its end, and an attempt leaves nothing behind for the next one.

Topology: two `FlightTransport`s in this process, the link between them through a TCP proxy. Faults: a link that stays
open and carries nothing (a cut between two hosts), a host that accepts connections and never answers. Checks: both ends
hear of it in time, the task thread never waits, a new attempt has connections of its own.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa
import pytest

from engine.core.ports import Frame
from engine.network.control import ControlClient, ControlServer
from engine.network.transport import FlightTransport
from engine.protocol.ids import AttemptId, ChannelId
from engine.protocol.messages import Heartbeat, MasterHeartbeat, MasterMessage
from tests.network.proxy import Proxy

SILENCE_S = 1.5
PATIENT_S = 600.0
"""Longer than any test waits: what is noticed is not noticed by silence."""
"""The patience of ends that must not be broken, or that must not notice a silence while something else is tested."""
FIRST, SECOND = AttemptId(1, 1), AttemptId(1, 2)
CHANNEL = ChannelId("edge", 0, 0)
BATCH = pa.record_batch({"n": [1, 2, 3]})


class End:
    """A transport that notes what it hears."""

    def __init__(self, silence_s: float) -> None:
        self.frames: list[tuple[AttemptId, int]] = []
        self.grants: list[tuple[AttemptId, int]] = []
        self.broken: list[tuple[AttemptId, str]] = []
        self.transport = FlightTransport(
            "job",
            "127.0.0.1",
            "token",
            lambda attempt, channel, frame: self.frames.append((attempt, frame.sequence)),
            lambda attempt, channel, total: self.grants.append((attempt, total)),
            lambda attempt, channel, why: self.broken.append((attempt, why)),
            silence_s=silence_s,
        )
        self.port = int(self.transport.address.rsplit(":", 1)[1])


class Pair:
    def __init__(self, silence_s: float) -> None:
        self.sender, self.receiver = End(silence_s), End(silence_s)
        self.proxy = Proxy(self.receiver.port)

    def connect(self, attempt: AttemptId) -> None:
        self.sender.transport.open(attempt, CHANNEL, self.proxy.address, BATCH.schema)
        self.receiver.transport.grant(attempt, CHANNEL, 1000)
        self.send(attempt, 1)
        eventually(lambda: (attempt, 1) in self.receiver.frames and (attempt, 1000) in self.sender.grants)

    def send(self, attempt: AttemptId, sequence: int) -> None:
        self.sender.transport.send(attempt, CHANNEL, Frame(sequence, BATCH, BATCH.nbytes, 0))

    def leave(self, attempt: AttemptId) -> None:
        self.sender.transport.close(attempt)
        self.receiver.transport.close(attempt)


def eventually(holds: Callable[[], bool], patience_s: float = 60.0) -> None:
    until = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(getattr(request, "param", PATIENT_S))
    yield made
    made.leave(SECOND)
    made.proxy.close()


@pytest.mark.parametrize("pair", [SILENCE_S], indirect=True)
def test_both_ends_notice_a_link_that_stays_open_and_carries_nothing(pair: Pair) -> None:
    pair.connect(FIRST)
    pair.proxy.stall()
    eventually(lambda: bool(pair.sender.broken and pair.receiver.broken))
    assert pair.sender.broken[0] == (FIRST, "its receiver has been silent for 1.5 s")
    assert pair.receiver.broken[0] == (FIRST, "its sender has been silent for 1.5 s")


@pytest.mark.parametrize("pair", [4.0], indirect=True)  # on a busy machine a sign may come seconds late
def test_a_channel_that_carries_nothing_for_long_is_not_broken(pair: Pair) -> None:
    pair.connect(FIRST)
    time.sleep(6.0)
    pair.send(FIRST, 2)
    eventually(lambda: (FIRST, 2) in pair.receiver.frames)
    assert not pair.sender.broken and not pair.receiver.broken
    assert pair.sender.grants == [(FIRST, 1000)], "signs of life are no grants"


@pytest.mark.parametrize("pair", [SILENCE_S], indirect=True)
def test_an_attempt_does_not_use_the_connections_of_the_one_before(pair: Pair) -> None:
    pair.connect(FIRST)
    pair.proxy.stall()
    eventually(lambda: bool(pair.sender.broken))
    pair.leave(FIRST)
    pair.connect(SECOND)
    assert pair.proxy.connections == 2
    assert all(attempt == FIRST for attempt, _ in pair.sender.broken + pair.receiver.broken)


def test_opening_a_channel_does_not_wait_for_a_host_that_does_not_answer(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        began = time.monotonic()
        address = f"grpc://127.0.0.1:{deaf.getsockname()[1]}"
        pair.sender.transport.open(FIRST, CHANNEL, address, BATCH.schema)
        pair.send(FIRST, 1)
        pair.leave(FIRST)
        assert time.monotonic() - began < 10, "gRPC itself waits for 20 s"


@pytest.mark.parametrize("pair", [SILENCE_S], indirect=True)
def test_a_host_that_does_not_answer_is_noticed(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"grpc://127.0.0.1:{deaf.getsockname()[1]}"
        pair.sender.transport.open(FIRST, CHANNEL, address, BATCH.schema)
        pair.send(FIRST, 1)
        eventually(lambda: bool(pair.sender.broken))
        pair.leave(FIRST)


def test_writers_end_with_their_attempt_though_peers_that_read_nothing_show_life() -> None:
    """The acknowledgements of signs of life kept TCP from ever giving such a connection up, on one link of four."""
    sender, receiver = End(SILENCE_S), End(SILENCE_S)
    links = [Proxy(receiver.port, room=65536) for _ in range(16)]
    channels = [ChannelId("unread", number, 0) for number in range(len(links))]
    large = pa.record_batch({"n": range(500_000)})
    for channel, link in zip(channels, links, strict=True):
        receiver.transport.grant(FIRST, channel, 1 << 40)
        sender.transport.open(FIRST, channel, link.address, large.schema)
    eventually(lambda: len(sender.grants) == len(links))
    for channel, link in zip(channels, links, strict=True):
        link.stall(there=True, back=False)
        for sequence in (1, 2):
            sender.transport.send(FIRST, channel, Frame(sequence, large, large.nbytes, 0))
    time.sleep(SILENCE_S / 3)  # they write, until there is no room
    sender.transport.close(FIRST)
    names = {f"send {channel}" for channel in channels}
    try:
        eventually(lambda: not names & {thread.name for thread in threading.enumerate()})
    finally:
        receiver.transport.close(FIRST)
        for link in links:
            link.close()


def test_closing_tells_the_peer_and_leaves_nothing_behind(pair: Pair) -> None:
    pair.connect(FIRST)
    pair.receiver.transport.close(FIRST)
    eventually(lambda: bool(pair.sender.broken))
    pair.receiver.transport.grant(FIRST, CHANNEL, 2000)
    pair.sender.transport.close(FIRST)
    pair.send(FIRST, 2)
    for end in (pair.sender, pair.receiver):
        assert not end.transport._incoming and not end.transport._outgoing and not end.transport._clients
    assert not pair.receiver.broken, "whoever left the attempt needs no report"


def test_a_channel_within_a_slot_ends_with_its_attempt() -> None:
    slot = End(PATIENT_S)
    slot.transport.open(FIRST, CHANNEL, slot.transport.address, BATCH.schema)
    frame = Frame(1, BATCH, BATCH.nbytes, 0)
    slot.transport.send(FIRST, CHANNEL, frame)
    slot.transport.grant(FIRST, CHANNEL, 7)
    slot.transport.close(FIRST)
    slot.transport.send(FIRST, CHANNEL, frame)
    slot.transport.grant(FIRST, CHANNEL, 8)
    assert (slot.frames, slot.grants) == ([(FIRST, 1)], [(FIRST, 7)])


def test_a_second_control_stream_of_a_session_is_refused_and_the_first_goes_on() -> None:
    heard: list[str] = []
    lost: dict[str, str] = {}
    gone: list[str] = []
    got: list[MasterMessage] = []
    server = ControlServer(
        "job", "127.0.0.1", "token", lambda session, _: heard.append(session), lambda session, _: gone.append(session)
    )
    first = ControlClient("job", "s", server.address, "token", got.append, partial(lost.__setitem__, "first"))
    first.send(Heartbeat({}))
    eventually(lambda: len(heard) == 1)
    ControlClient("job", "s", server.address, "token", lambda _: None, partial(lost.__setitem__, "second"))
    eventually(lambda: "second" in lost)
    server.send("s", MasterHeartbeat())
    eventually(lambda: len(got) == 1)
    assert "has a control stream already" in lost["second"] and "first" not in lost and not gone
    first.close()
    server.close(1.0)


def test_a_channel_that_is_left_prints_nothing(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    """Arrow prints an error if a stream that was cancelled is freed before it is closed."""
    pair.connect(FIRST)
    pair.leave(FIRST)
    eventually(lambda: not any(thread.name.startswith(("send", "credit")) for thread in threading.enumerate()))
    assert "Close() failed" not in capfd.readouterr().err
