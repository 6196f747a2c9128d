"""The ports of a simulated slot: offloaded work that the scheduler runs, data channels, and the control link."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from engine.core.errors import CorruptSnapshot, StoreError, SyncFailed
from engine.core.ports import Frame
from engine.protocol.ids import AttemptId, ChannelId
from tests.simulation.world import Process, Violation, World

if TYPE_CHECKING:
    from tests.simulation.cluster import MasterProcess, SlotProcess

FRAME_LOST = "channel: a frame is lost"
FRAME_TWICE = "channel: a frame comes twice"

Done = Callable[[Any, BaseException | None], None]


def attempt_work(process: Process, name: str, work: Callable[[], Any], expected: tuple[type, ...]) -> tuple[Any, Any]:
    """Runs offloaded work and returns its result and error. Raises a Violation for an error that no fault explains."""
    try:
        return work(), None
    except SyncFailed as error:
        return None, error
    except expected as error:
        return None, error
    except Exception as error:
        raise Violation("internal_error", f"{process.name}, {name}: {type(error).__name__}: {error}") from error


class SimOffload:
    """Runs the work of a lane in order. Chance decides when work starts and when its result comes back."""

    def __init__(self, process: SlotProcess, typical_ms: float) -> None:
        self._process = process
        self._typical_ms = typical_ms
        self._lanes: dict[str, deque[tuple[Callable[[], Any], Done]]] = {}
        self._results_until_ms: dict[str, float] = {}  # results of a lane come back in order
        self.hung_since_ms: float | None = None  # from then on, work is never done

    def submit(self, lane: str, work: Callable[[], Any], done: Done) -> None:
        work = partial(contextvars.copy_context().run, work)
        queue = self._lanes.setdefault(lane, deque())
        queue.append((work, done))
        if len(queue) == 1:
            self._schedule(lane)

    def _schedule(self, lane: str) -> None:
        world = self._process.world
        world.after(world.delay(self._typical_ms), self._process, f"runs {lane}", lambda: self._run(lane))

    def _run(self, lane: str) -> None:
        world, queue = self._process.world, self._lanes[lane]
        if self.hung_since_ms is not None:
            return
        work, done = queue[0]

        def ended(outcome: tuple[Any, Any]) -> None:
            arrival = max(self._results_until_ms.get(lane, 0.0), world.now_ms + world.delay(self._typical_ms))
            self._results_until_ms[lane] = arrival
            world.at(arrival, self._process, f"done {lane}", lambda: finish(*outcome))
            queue.popleft()
            if queue:
                self._schedule(lane)

        def finish(result: Any, error: BaseException | None) -> None:
            self._process.deliver(lambda: done(result, error))

        expected = (StoreError, CorruptSnapshot)
        world.off_loop(self._process, lane, lambda: attempt_work(self._process, lane, work, expected), ended)


@dataclass(frozen=True)
class NetworkFaults:
    """Probabilities per frame and per control message. After a loss the connection breaks too."""

    frame_break: float = 0.0
    frame_lost: float = 0.0
    frame_repeated: float = 0.0
    message_lost: float = 0.0
    message_repeated: float = 0.0


@dataclass
class Connection:
    """One data channel of one attempt: frames go one way, grants the other, each in order."""

    schema: pa.Schema | None = None
    sender: SlotProcess | None = None
    receiver: SlotProcess | None = None
    granted: int = 0
    sent_bytes: int = 0
    grant_total: int = 0
    broken: bool = False
    closed: bool = False  # frames in flight still arrive, as those in the mailbox of a real slot do
    frames_until_ms: float = 0.0
    grants_until_ms: float = 0.0
    early_grants: list[int] = field(default_factory=list)


class Network:
    """The addresses of all slots, and all data connections."""

    def __init__(self, world: World, faults: NetworkFaults, typical_ms: float) -> None:
        self.world = world
        self.faults = faults
        self.typical_ms = typical_ms
        self.addresses: dict[str, SlotProcess] = {}
        self._connections: dict[tuple[AttemptId, ChannelId], Connection] = {}

    def connection(self, attempt: AttemptId, channel: ChannelId) -> Connection:
        return self._connections.setdefault((attempt, channel), Connection())

    def close_all(self, process: SlotProcess, attempt: AttemptId) -> None:
        """Ends the channels that this process has in this attempt and in earlier ones; their other ends hear of it."""
        for (of, channel), connection in self._connections.items():
            if of <= attempt and not connection.closed and process in (connection.sender, connection.receiver):
                connection.closed = True
                for end in (connection.sender, connection.receiver):
                    if end is not None and end is not process and end.alive:
                        self._tell(end, of, channel)

    def _tell(self, end: SlotProcess, attempt: AttemptId, channel: ChannelId) -> None:
        label = f"channel {channel} of {attempt} broke"
        self.world.after(self.world.delay(2 * self.typical_ms), end, label, _told(end, attempt, channel))

    def break_connection(self, attempt: AttemptId, channel: ChannelId, after_ms: float) -> None:
        connection = self.connection(attempt, channel)

        def broken() -> None:
            connection.broken = True
            for end in (connection.sender, connection.receiver):
                if end is not None and end.alive:
                    self._tell(end, attempt, channel)

        self.world.hits.add("channel: broken")
        self.world.after(after_ms, None, f"channel {channel} of {attempt} breaks", broken)


def _told(end: SlotProcess, attempt: AttemptId, channel: ChannelId) -> Callable[[], None]:
    def tell() -> None:
        end.deliver(lambda: end.runtime.on_channel_broken(attempt, channel, "simulated reset"))

    return tell


class SimTransport:
    """The `Transport` port of one slot. Frames in flight still arrive after the slot has left their attempt."""

    def __init__(self, network: Network, process: SlotProcess) -> None:
        self._network = network
        self._process = process
        self._left = AttemptId(0, 0)

    def open(self, attempt: AttemptId, channel: ChannelId, address: str, schema: pa.Schema) -> None:
        self._process.touch("open")
        if attempt <= self._left:
            return
        connection = self._network.connection(attempt, channel)
        connection.schema = schema
        connection.sender = self._process
        connection.receiver = self._network.addresses[address]
        for total in connection.early_grants:
            self._deliver_grant(connection, attempt, channel, total)
        connection.early_grants = []

    def send(self, attempt: AttemptId, channel: ChannelId, frame: Frame) -> None:
        self._process.touch("frame")
        if attempt <= self._left:
            return
        network, world = self._network, self._network.world
        connection = network.connection(attempt, channel)
        if isinstance(frame.element, pa.RecordBatch) and not frame.element.schema.equals(connection.schema):
            raise Violation("schema", f"{channel}: {frame.element.schema} where {connection.schema} was opened")
        connection.sent_bytes += frame.size
        if frame.size and connection.sent_bytes - frame.size >= connection.grant_total:
            raise Violation(
                "credit", f"{channel}: {connection.sent_bytes} bytes sent, {connection.grant_total} granted"
            )
        if connection.broken:
            return
        if world.chance(network.faults.frame_break):
            network.break_connection(attempt, channel, 0.0)
            return
        if world.chance(network.faults.frame_lost):
            world.hits.add(FRAME_LOST)
            network.break_connection(attempt, channel, 30 * world.random.random())
            return
        self._deliver_frame(connection, attempt, channel, frame)
        if world.chance(network.faults.frame_repeated):
            world.hits.add(FRAME_TWICE)
            self._deliver_frame(connection, attempt, channel, frame)

    def _deliver_frame(self, connection: Connection, attempt: AttemptId, channel: ChannelId, frame: Frame) -> None:
        network, world = self._network, self._network.world
        receiver = connection.receiver
        assert receiver is not None

        def arrive() -> None:
            if not receiver.alive:
                if not connection.broken:
                    network.break_connection(attempt, channel, 0.0)
            elif not connection.broken:
                label = f"frame {channel} {frame.sequence} of {attempt}"
                world.after(0.0, receiver, label, lambda: receiver.deliver(taken))

        def taken() -> None:
            refused = receiver.runtime.refused
            receiver.runtime.on_frame(attempt, channel, frame)
            if receiver.runtime.refused != refused:
                world.hits.add("slot: refuses a frame of another attempt")

        arrival = max(connection.frames_until_ms, world.now_ms + world.delay(network.typical_ms))
        connection.frames_until_ms = arrival
        world.at(arrival, None, "net", arrive)

    def grant(self, attempt: AttemptId, channel: ChannelId, granted_total: int) -> None:
        self._process.touch("grant")
        if attempt <= self._left:
            return
        connection = self._network.connection(attempt, channel)
        connection.grant_total = max(connection.grant_total, granted_total)
        if connection.sender is None:
            connection.early_grants.append(granted_total)
        else:
            self._deliver_grant(connection, attempt, channel, granted_total)

    def _deliver_grant(self, connection: Connection, attempt: AttemptId, channel: ChannelId, total: int) -> None:
        world, sender = self._network.world, connection.sender
        assert sender is not None

        def taken() -> None:
            if not connection.broken:
                sender.deliver(lambda: sender.runtime.on_grant(attempt, channel, total))

        arrival = max(connection.grants_until_ms, world.now_ms + world.delay(self._network.typical_ms))
        connection.grants_until_ms = arrival
        world.at(arrival, sender, f"grant {channel} {total} of {attempt}", taken)

    def close(self, attempt: AttemptId) -> None:
        self._left = max(self._left, attempt)
        self._network.close_all(self._process, attempt)


class Link:
    """The control stream between a slot and its JobMaster, ordered each way.

    Like a TCP stream it may deliver late, and it breaks soon after it loses a message. Copies stand for messages that a
    process sends again when it is not sure of their arrival; they may come much later.
    """

    def __init__(
        self, world: World, slot: SlotProcess, master: MasterProcess, faults: NetworkFaults, typical_ms: float
    ):
        self.world = world
        self.slot = slot
        self.master = master
        self.broken = False
        self.lose_next = ""  # the name of the message to lose
        self.held_until_ms = 0.0  # messages wait until then: a network partition
        self._faults = faults
        self._typical_ms = typical_ms
        self._until_ms = [0.0, 0.0]

    def to_master(self, data: bytes, name: str) -> None:
        self._send(0, self.master, f"gets {name} from {self.slot.name}", lambda: self.master.receive(self, data))

    def to_slot(self, data: bytes, name: str) -> None:
        self._send(1, self.slot, f"gets {name}", lambda: self.slot.receive(data))

    def _send(self, direction: int, target: Process, label: str, deliver: Callable[[], None]) -> None:
        world = self.world
        if self.broken:
            return
        lost = bool(self.lose_next) and self.lose_next in label
        if lost or world.chance(self._faults.message_lost):
            self.lose_next = ""
            world.hits.add("control: a message is lost, the stream breaks")
            world.after(60 * world.random.random(), None, f"link of {self.slot.name} breaks", self.breaks)
            return

        def arrive() -> None:
            if not self.broken:
                deliver()

        arrival = max(self._until_ms[direction], world.now_ms + world.delay(self._typical_ms), self.held_until_ms)
        self._until_ms[direction] = arrival
        world.at(arrival, target, label, arrive)
        if world.chance(self._faults.message_repeated):
            world.hits.add("control: a message is repeated")
            world.at(arrival + 30 * world.random.random(), target, f"{label} again", arrive)

    def breaks(self) -> None:
        if self.broken:
            return
        self.broken = True
        world = self.world
        world.after(
            world.delay(2.0), self.master, f"{self.slot.name} is gone", lambda: self.master.slot_gone(self.slot.session)
        )
        # The slot works on until it notices; it must do no harm meanwhile.
        world.after(20 * world.random.random(), self.slot, "loses its JobMaster", self.slot.ends)
