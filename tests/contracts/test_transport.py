"""The contract of `Transport` in `engine/core/ports.py`: Arrow Flight, and the simulator's transport.

Topology: three slots; what each says to another goes over a link that can be broken. Faults: links that swallow
everything in one direction or in both while their connections stay open, a slot that is gone, an address where nobody
listens. Each slot notes what its transport tells it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from engine.core.ports import Element, Frame, Transport
from engine.network.transport import FlightTransport
from engine.protocol.ids import AttemptId, ChannelId
from engine.protocol.signals import Barrier, EndOfData, StreamStatus, Watermark
from tests.network.proxy import Proxy
from tests.simulation.ports import Network, NetworkFaults, SilentLink, SimTransport
from tests.simulation.world import Process, World

OLDER, FIRST, SECOND = AttemptId(1, 1), AttemptId(1, 2), AttemptId(2, 1)
CHANNEL = ChannelId("edge", 0, 0)
BATCH = pa.record_batch({"n": [1, 2, 3]})
MUCH = 1 << 40
SLOTS = ("a", "b", "c")


class Heard:
    """Notes what the transport of one slot reports."""

    def __init__(self) -> None:
        self.frames: dict[tuple[AttemptId, ChannelId], list[Frame]] = {}
        self.grants: dict[tuple[AttemptId, ChannelId], list[int]] = {}
        self.broken: list[tuple[AttemptId, ChannelId]] = []
        self.refused = 0

    def on_frame(self, attempt: AttemptId, channel: ChannelId, frame: Frame) -> None:
        self.frames.setdefault((attempt, channel), []).append(frame)

    def on_grant(self, attempt: AttemptId, channel: ChannelId, total: int) -> None:
        self.grants.setdefault((attempt, channel), []).append(total)

    def on_channel_broken(self, attempt: AttemptId, channel: ChannelId, why: str) -> None:
        self.broken.append((attempt, channel))

    def elements(self, attempt: AttemptId, channel: ChannelId) -> list[Element]:
        frames = self.frames.get((attempt, channel), [])
        assert [frame.sequence for frame in frames] == list(range(1, len(frames) + 1))
        return [frame.element for frame in frames]


class Slots:
    """Three slots, what they heard, and how their transports are used."""

    transports: dict[str, Transport]
    silence_s: float

    def __init__(self) -> None:
        self.heard = {name: Heard() for name in SLOTS}
        self._sequence: dict[tuple[AttemptId, ChannelId], Iterator[int]] = {}

    def address(self, source: str, target: str) -> str:
        """Returns the address at which `source` reaches `target`."""
        raise NotImplementedError

    def until(self, over: Callable[[], bool]) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        """Waits until everything that is under way has arrived, and for longer than a link may be silent."""
        raise NotImplementedError

    def swallow(self, source: str, target: str) -> None:
        """Lets nothing that `source` says on open connections arrive at `target`. Later connections carry."""
        raise NotImplementedError

    def dies(self, name: str) -> None:
        raise NotImplementedError

    def end(self) -> None: ...

    # --- short forms ---

    def open(self, attempt: AttemptId, source: str, target: str, channel: ChannelId = CHANNEL) -> None:
        self.transports[source].open(attempt, channel, self.address(source, target), BATCH.schema)

    def grant(self, attempt: AttemptId, target: str, total: int = MUCH, channel: ChannelId = CHANNEL) -> None:
        self.transports[target].grant(attempt, channel, total)

    def connect(self, attempt: AttemptId, source: str, target: str, channel: ChannelId = CHANNEL) -> None:
        """Opens a channel, and waits until frames may be sent on it."""
        self.grant(attempt, target, MUCH, channel)
        self.open(attempt, source, target, channel)
        self.until(lambda: self.heard[source].grants.get((attempt, channel)) == [MUCH])

    def send(self, attempt: AttemptId, source: str, *elements: Element, channel: ChannelId = CHANNEL) -> None:
        numbers = self._sequence.setdefault((attempt, channel), itertools.count(1))
        for element in elements:
            size = element.nbytes if isinstance(element, pa.RecordBatch) else 0
            self.transports[source].send(attempt, channel, Frame(next(numbers), element, size, 7))

    def close(self, attempt: AttemptId, *names: str) -> None:
        for name in names:
            self.transports[name].close(attempt)

    def arrived(self, attempt: AttemptId, target: str, count: int, channel: ChannelId = CHANNEL) -> list[Element]:
        heard = self.heard[target]
        self.until(lambda: len(heard.frames.get((attempt, channel), [])) >= count)
        return heard.elements(attempt, channel)


class Flight(Slots):
    silence_s = 4.0  # signs of life come every second, so on a busy machine one may come more than two seconds late

    def __init__(self) -> None:
        super().__init__()
        made = {name: self._transport(heard) for name, heard in self.heard.items()}
        self.transports = dict(made)
        self._addresses = {name: transport.address for name, transport in made.items()}
        ports = {name: int(address.rsplit(":", 1)[1]) for name, address in self._addresses.items()}
        self._links = {(source, target): Proxy(ports[target]) for source, target in itertools.permutations(SLOTS, 2)}

    def _transport(self, heard: Heard) -> FlightTransport:
        callbacks = (heard.on_frame, heard.on_grant, heard.on_channel_broken)
        return FlightTransport("job", "127.0.0.1", "token", *callbacks, self.silence_s)

    def address(self, source: str, target: str) -> str:
        return self._addresses[target] if source == target else self._links[source, target].address

    def until(self, over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not over():
            assert time.monotonic() < deadline, "nothing came in 120 s"
            time.sleep(0.005)

    def settle(self) -> None:
        time.sleep(1.2 * self.silence_s)

    def swallow(self, source: str, target: str) -> None:
        # A channel's connection goes from its sender to its receiver and carries both directions.
        self._links[source, target].stall(there=True, back=False)
        self._links[target, source].stall(there=False, back=True)

    def dies(self, name: str) -> None:
        for ends, link in self._links.items():
            if name in ends:
                link.close()

    def end(self) -> None:
        self.close(SECOND, *SLOTS)
        for link in self._links.values():
            link.close()


class PatientFlight(Flight):
    """A peer that reads nothing is given up only after minutes: whoever waits for it is seen to wait."""

    silence_s = 120.0


class _Slot(Process):
    def __init__(self, world: World, name: str, heard: Heard) -> None:
        super().__init__(world, name)
        self.runtime = heard

    def deliver(self, work: Callable[[], None]) -> None:
        work()


class Simulated(Slots):
    silence_s = 0.07

    def __init__(self) -> None:
        super().__init__()
        self._world = World(2)
        self._world.calm_ms = 1e9  # delays vary
        self._network = Network(self._world, NetworkFaults(), typical_ms=1.0, patience_ms=self.silence_s * 1000)
        self._slots: dict[str, Any] = {name: _Slot(self._world, name, heard) for name, heard in self.heard.items()}
        self._network.addresses.update(self._slots)
        self.transports = {name: SimTransport(self._network, slot) for name, slot in self._slots.items()}

    def address(self, source: str, target: str) -> str:
        return target

    def until(self, over: Callable[[], bool]) -> None:
        assert self._world.run(over, 1e6, 1_000_000)

    def settle(self) -> None:
        self._world.run(lambda: False, self._world.now_ms + 1_000, 1_000_000)

    def swallow(self, source: str, target: str) -> None:
        self._network.silence(SilentLink(self._slots[source], self._slots[target], self._world.now_ms))

    def dies(self, name: str) -> None:
        self._world.kill(self._slots[name], "dies")
        self._network.process_ended(self._slots[name])


@pytest.fixture(params=[Flight, Simulated])
def slots(request: pytest.FixtureRequest) -> Iterator[Slots]:
    made = request.param()
    yield made
    made.end()


# --- frames ---


def test_batches_and_signals_arrive_in_order_and_no_signal_overtakes_data(slots: Slots) -> None:
    slots.connect(FIRST, "a", "b")
    sent: list[Element] = []
    for number in range(100):
        batch = pa.record_batch({"n": pa.array([number] * number, pa.int64())})
        sent += [batch, Watermark(number), batch, Barrier(number, 5), StreamStatus(idle=bool(number % 2))]
    slots.send(FIRST, "a", *sent)
    assert slots.arrived(FIRST, "b", len(sent)) == sent
    frame = slots.heard["b"].frames[FIRST, CHANNEL][10]
    assert (frame.size, frame.backlog) == (sent[10].nbytes, 7)


def test_an_empty_batch_and_the_signal_behind_it_arrive(slots: Slots) -> None:
    slots.connect(FIRST, "a", "b")
    sent = [BATCH.slice(0, 0), Watermark(1), BATCH.slice(3), Barrier(1, 1), BATCH]
    slots.send(FIRST, "a", *sent)
    got = slots.arrived(FIRST, "b", len(sent))
    assert got == sent and got[0].schema == BATCH.schema


def test_barriers_arrive_behind_the_end_of_the_data(slots: Slots) -> None:
    slots.connect(FIRST, "a", "b")
    sent = [BATCH, EndOfData(), Barrier(1, 1), Barrier(2, 2)]
    slots.send(FIRST, "a", *sent)
    assert slots.arrived(FIRST, "b", len(sent)) == sent


def test_a_large_frame_arrives_whole_and_in_its_place(slots: Slots) -> None:
    slots.connect(FIRST, "a", "b")
    large = pa.record_batch({"n": range(8_000_000)})
    slots.send(FIRST, "a", BATCH, large, Watermark(1))
    got = slots.arrived(FIRST, "b", 3)
    assert got[1].equals(large) and got[2] == Watermark(1)


def test_many_channels_between_all_slots_keep_their_frames_apart(slots: Slots) -> None:
    ways = list(itertools.product(SLOTS, SLOTS))
    channels = [(source, target, ChannelId(f"{source}{target}", n, n)) for source, target in ways for n in range(6)]
    for source, target, channel in channels:
        slots.connect(FIRST, source, target, channel)
    for number in range(20):
        for at, (source, _, channel) in enumerate(channels):
            slots.send(FIRST, source, Watermark(1000 * at + number), BATCH, channel=channel)
    for at, (_, target, channel) in enumerate(channels):
        got = slots.arrived(FIRST, target, 40, channel)
        assert got == [element for number in range(20) for element in (Watermark(1000 * at + number), BATCH)]
    slots.settle()
    assert not any(heard.broken for heard in slots.heard.values())


def test_a_channel_within_a_slot_carries_frames_and_grants_until_its_attempt_is_closed(slots: Slots) -> None:
    slots.connect(FIRST, "a", "a")
    slots.send(FIRST, "a", BATCH, Watermark(1))
    assert slots.arrived(FIRST, "a", 2) == [BATCH, Watermark(1)]
    slots.close(FIRST, "a")
    slots.send(FIRST, "a", BATCH)
    slots.grant(FIRST, "a", 2 * MUCH)
    slots.settle()
    assert slots.heard["a"].elements(FIRST, CHANNEL) == [BATCH, Watermark(1)]
    assert slots.heard["a"].grants == {(FIRST, CHANNEL): [MUCH]} and not slots.heard["a"].broken


def test_frames_on_a_channel_that_was_never_opened_go_nowhere(slots: Slots) -> None:
    slots.grant(FIRST, "b")
    slots.send(FIRST, "a", BATCH)
    slots.settle()
    assert not any(heard.frames or heard.broken for heard in slots.heard.values())


# --- grants ---


def test_the_newest_grant_arrives_and_none_goes_back(slots: Slots) -> None:
    slots.open(FIRST, "a", "b")
    for total in (100, 200, 150, 300, 300, 250):
        slots.grant(FIRST, "b", total)
    grants = slots.heard["a"].grants
    slots.until(lambda: 300 in grants.get((FIRST, CHANNEL), []))
    slots.settle()
    assert grants[FIRST, CHANNEL] == sorted(set(grants[FIRST, CHANNEL]))
    assert not slots.heard["c"].grants and not slots.heard["b"].grants


def test_a_grant_that_is_given_before_the_sender_opens_its_channel_arrives(slots: Slots) -> None:
    slots.grant(FIRST, "b", 100)
    slots.grant(FIRST, "b", 200)
    slots.settle()
    slots.open(FIRST, "a", "b")
    slots.until(lambda: 200 in slots.heard["a"].grants.get((FIRST, CHANNEL), []))


# --- attempts ---


@pytest.mark.parametrize(("closer", "other"), [("a", "b"), ("b", "a")])
def test_the_other_end_hears_once_that_a_channel_was_closed_and_nothing_arrives_later(
    slots: Slots, closer: str, other: str
) -> None:
    slots.connect(FIRST, "a", "b")
    slots.send(FIRST, "a", BATCH)
    slots.arrived(FIRST, "b", 1)
    slots.close(FIRST, closer)
    slots.send(FIRST, "a", BATCH, Watermark(1))
    slots.grant(FIRST, "b", 2 * MUCH)
    slots.until(lambda: bool(slots.heard[other].broken))
    slots.send(FIRST, "a", BATCH)
    slots.grant(FIRST, "b", 3 * MUCH)
    slots.settle()
    assert slots.heard[other].broken == [(FIRST, CHANNEL)]
    assert slots.heard[closer].broken == [], "who closes a channel needs no report"
    assert slots.heard["b"].elements(FIRST, CHANNEL) == [BATCH]
    assert slots.heard["a"].grants == {(FIRST, CHANNEL): [MUCH]}


def test_a_channel_of_an_attempt_that_its_receiver_has_left_is_refused(slots: Slots) -> None:
    slots.close(FIRST, "b")
    for attempt in (OLDER, FIRST):
        slots.grant(attempt, "b")
        slots.open(attempt, "a", "b")
        slots.send(attempt, "a", Watermark(1))
    slots.until(lambda: len(slots.heard["a"].broken) == 2)
    slots.settle()
    assert sorted(slots.heard["a"].broken) == [(OLDER, CHANNEL), (FIRST, CHANNEL)]
    assert not slots.heard["b"].frames and not slots.heard["b"].broken and not slots.heard["a"].grants


def test_a_slot_that_has_left_an_attempt_opens_sends_and_grants_nothing_in_it(slots: Slots) -> None:
    slots.close(FIRST, "a")
    for attempt in (OLDER, FIRST):
        slots.grant(attempt, "b")
        slots.open(attempt, "a", "b")
        slots.send(attempt, "a", Watermark(1))
        slots.open(attempt, "b", "a", ChannelId("back", 0, 0))
        slots.grant(attempt, "a", channel=ChannelId("back", 0, 0))
    slots.settle()
    assert not slots.heard["b"].frames and not slots.heard["b"].grants
    assert not slots.heard["a"].frames and not slots.heard["a"].grants and not slots.heard["a"].broken


def test_the_next_attempt_uses_the_same_addresses_and_hears_nothing_of_the_one_before(slots: Slots) -> None:
    slots.connect(FIRST, "a", "b")
    slots.send(FIRST, "a", BATCH, Watermark(1))
    _close_everywhere(slots)
    slots.connect(SECOND, "a", "b")
    slots.send(FIRST, "a", Watermark(2))
    slots.send(SECOND, "a", Watermark(3))
    slots.grant(FIRST, "b", 2 * MUCH)
    assert slots.arrived(SECOND, "b", 1) == [Watermark(3)]
    slots.settle()
    assert slots.heard["b"].elements(SECOND, CHANNEL) == [Watermark(3)]
    assert slots.heard["b"].elements(FIRST, CHANNEL) in ([], [BATCH], [BATCH, Watermark(1)])
    assert slots.heard["a"].grants == {(FIRST, CHANNEL): [MUCH], (SECOND, CHANNEL): [MUCH]}
    assert slots.heard["a"].broken == [] and slots.heard["b"].broken == [(FIRST, CHANNEL)]


def test_closing_an_attempt_leaves_later_ones_open(slots: Slots) -> None:
    slots.connect(FIRST, "a", "b")
    slots.connect(SECOND, "a", "b")
    _close_everywhere(slots)
    slots.send(SECOND, "a", Watermark(1))
    assert slots.arrived(SECOND, "b", 1) == [Watermark(1)]
    slots.settle()
    assert slots.heard["a"].broken == [] and slots.heard["b"].broken == [(FIRST, CHANNEL)]


def _close_everywhere(slots: Slots) -> None:
    """Closes the first attempt at one end and then at the other, which always hears of it before."""
    slots.close(FIRST, "a")
    slots.until(lambda: bool(slots.heard["b"].broken))
    slots.close(FIRST, "b")


# --- peers that are gone, or silent ---


def test_a_peer_that_is_gone_is_reported_once_on_each_of_its_channels_and_on_no_other(slots: Slots) -> None:
    there, back, apart = (ChannelId(name, 0, 0) for name in ("there", "back", "apart"))
    slots.connect(FIRST, "a", "b", there)
    slots.connect(FIRST, "b", "a", back)
    slots.connect(FIRST, "a", "c", apart)
    slots.dies("b")
    slots.until(lambda: len(slots.heard["a"].broken) == 2)
    slots.send(FIRST, "a", BATCH, channel=there)
    slots.grant(FIRST, "a", 2 * MUCH, back)
    slots.send(FIRST, "a", BATCH, channel=apart)
    slots.arrived(FIRST, "c", 1, apart)
    slots.settle()
    assert sorted(slots.heard["a"].broken) == [(FIRST, back), (FIRST, there)]
    assert not slots.heard["c"].broken


def test_a_channel_to_an_address_where_nobody_listens_is_reported_once(slots: Slots) -> None:
    slots.transports["a"].open(FIRST, CHANNEL, "grpc://127.0.0.1:1", BATCH.schema)
    slots.send(FIRST, "a", Watermark(1))
    slots.until(lambda: bool(slots.heard["a"].broken))
    slots.settle()
    assert slots.heard["a"].broken == [(FIRST, CHANNEL)]


def test_a_link_that_swallows_everything_is_reported_once_at_both_ends(slots: Slots) -> None:
    slots.connect(FIRST, "a", "b")
    slots.swallow("a", "b")
    slots.swallow("b", "a")
    slots.send(FIRST, "a", BATCH)
    slots.until(lambda: bool(slots.heard["a"].broken and slots.heard["b"].broken))
    slots.settle()
    assert slots.heard["a"].broken == slots.heard["b"].broken == [(FIRST, CHANNEL)]
    assert not slots.heard["b"].frames


@pytest.mark.parametrize(("speaker", "listener"), [("a", "b"), ("b", "a")])
def test_a_link_that_swallows_one_direction_is_reported_once_where_nothing_comes(
    slots: Slots, speaker: str, listener: str
) -> None:
    slots.connect(FIRST, "a", "b")
    slots.swallow(speaker, listener)
    slots.send(FIRST, "a", BATCH)
    slots.grant(FIRST, "b", 2 * MUCH)
    slots.until(lambda: bool(slots.heard[listener].broken))
    slots.settle()
    assert slots.heard[listener].broken == [(FIRST, CHANNEL)] and not slots.heard[speaker].broken
    assert ((FIRST, CHANNEL) in slots.heard["b"].frames) is (speaker == "b")
    slots.close(FIRST, "a", "b")
    slots.connect(SECOND, "a", "b")
    slots.send(SECOND, "a", Watermark(1))
    assert slots.arrived(SECOND, "b", 1) == [Watermark(1)]


def test_a_channel_that_carries_nothing_for_long_is_not_broken(slots: Slots) -> None:
    slots.connect(FIRST, "a", "b")
    slots.settle()
    slots.settle()
    slots.send(FIRST, "a", Watermark(1))
    assert slots.arrived(FIRST, "b", 1) == [Watermark(1)]
    assert not any(heard.broken for heard in slots.heard.values())
    assert slots.heard["a"].grants == {(FIRST, CHANNEL): [MUCH]}


LARGE = pa.record_batch({"n": range(500_000)})


@pytest.mark.parametrize("slots", [PatientFlight, Simulated], indirect=True)
def test_a_peer_that_reads_nothing_blocks_nobody(slots: Slots) -> None:
    unread, other = ChannelId("unread", 0, 0), ChannelId("other", 0, 0)
    slots.connect(FIRST, "a", "b", unread)
    slots.connect(FIRST, "a", "c", other)
    slots.swallow("a", "b")
    began = time.monotonic()
    slots.send(FIRST, "a", *[LARGE] * 16, channel=unread)  # far more than the buffers of a connection
    slots.send(FIRST, "a", Watermark(1), channel=other)
    assert slots.arrived(FIRST, "c", 1, other) == [Watermark(1)]
    slots.close(FIRST, "a")
    assert time.monotonic() - began < 60
    slots.dies("b")
    slots.until(lambda: not any(thread.name == f"send {unread}" for thread in threading.enumerate()))
    assert not slots.heard["b"].frames


def test_the_writer_to_a_peer_that_reads_nothing_ends_with_the_attempt(slots: Slots) -> None:
    slots.connect(FIRST, "a", "b")
    slots.swallow("a", "b")
    slots.send(FIRST, "a", *[LARGE] * 16)
    slots.close(FIRST, "a")
    slots.until(lambda: not any(thread.name == f"send {CHANNEL}" for thread in threading.enumerate()))
    slots.settle()
    assert not slots.heard["b"].frames
