"""The ports of a simulated slot: offloaded work that the scheduler runs, data channels, and the control link."""

from __future__ import annotations

import contextvars
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from engine.core.errors import CorruptSnapshot, StoreError, SyncFailed
from engine.core.ports import Frame
from engine.graph.execution_graph import ExecutionGraph
from engine.protocol.channel_watch import PeerWatch, look_period_ms
from engine.protocol.ids import AttemptId, ChannelId
from tests.simulation.world import Process, Violation, World

if TYPE_CHECKING:
    from tests.simulation.cluster import MasterProcess, SlotProcess

SILENCE_MS = 70.0
FRAME_LOST = "channel: a frame is lost"
FRAME_TWICE = "channel: a frame comes twice"
SWALLOWED = "channel: a silent link swallows what is said"
SILENT_PEER = "channel: its peer is silent for too long"

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
    """Runs the work of a queue in order. Chance decides when work starts and when its result comes back."""

    def __init__(self, process: SlotProcess, typical_ms: float) -> None:
        self._process = process
        self._typical_ms = typical_ms
        self._queues: dict[str, deque[tuple[Callable[[], Any], Done]]] = {}
        self._results_until_ms: dict[str, float] = {}  # results of a queue come back in order
        self.hung_since_ms: float | None = None  # from then on, work is never done

    def submit(self, queue: str, work: Callable[[], Any], done: Done) -> None:
        work = partial(contextvars.copy_context().run, work)
        waiting = self._queues.setdefault(queue, deque())
        waiting.append((work, done))
        if len(waiting) == 1:
            self._schedule(queue)

    def _schedule(self, queue: str) -> None:
        world = self._process.world
        world.after(world.delay(self._typical_ms), self._process, f"runs {queue}", lambda: self._run(queue))

    def _run(self, queue: str) -> None:
        world, waiting = self._process.world, self._queues[queue]
        if self.hung_since_ms is not None:
            return
        work, done = waiting[0]

        def ended(outcome: tuple[Any, Any]) -> None:
            arrival = max(self._results_until_ms.get(queue, 0.0), world.now_ms + world.delay(self._typical_ms))
            self._results_until_ms[queue] = arrival
            world.at(arrival, self._process, f"done {queue}", lambda: finish(*outcome))
            waiting.popleft()
            if waiting:
                self._schedule(queue)

        def finish(result: Any, error: BaseException | None) -> None:
            self._process.deliver(lambda: done(result, error))

        expected = (StoreError, CorruptSnapshot)
        world.off_loop(self._process, queue, lambda: attempt_work(self._process, queue, work, expected), ended)


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
    accepted: bool = False  # the receiver knows of it
    sent_bytes: int = 0
    grant_total: int = 0
    grant_sent: int = 0
    broken: bool = False
    closed: bool = False  # frames in flight still arrive, as those in the mailbox of a real slot do
    dead: set[SlotProcess] = field(default_factory=set)  # what these say is swallowed, for good
    told: set[SlotProcess] = field(default_factory=set)
    frames_until_ms: float = 0.0
    grants_until_ms: float = 0.0

    @property
    def ends(self) -> list[SlotProcess]:
        return [end for end in (self.sender, self.receiver) if end is not None]

    def peer(self, end: SlotProcess) -> SlotProcess | None:
        return self.receiver if end is self.sender else self.sender


@dataclass(frozen=True)
class SilentLink:
    """What `source` says to `target` is swallowed until a time, on new connections; for good on those open before.

    `late`: nothing was lost for good; what was swallowed arrives when the link is well again, as TCP sends it again.
    """

    source: SlotProcess
    target: SlotProcess
    until_ms: float
    late: bool = False


class Network:
    """The addresses of all slots, and all data connections. Who is silent for `patience_ms` counts as lost."""

    def __init__(self, world: World, faults: NetworkFaults, typical_ms: float, patience_ms: float = SILENCE_MS) -> None:
        self.world = world
        self.faults = faults
        self.typical_ms = typical_ms
        self.patience_ms = patience_ms
        self.addresses: dict[str, SlotProcess] = {}
        self.left: dict[SlotProcess, AttemptId] = {}
        self._silent: list[SilentLink] = []
        self._watches: dict[SlotProcess, dict[tuple[AttemptId, ChannelId], PeerWatch]] = {}
        self._connections: dict[tuple[AttemptId, ChannelId], Connection] = {}

    def connection(self, attempt: AttemptId, channel: ChannelId) -> Connection:
        return self._connections.setdefault((attempt, channel), Connection())

    def has_left(self, process: SlotProcess, attempt: AttemptId) -> bool:
        return process in self.left and attempt <= self.left[process]

    # --- links that carry nothing ---

    def silence(self, link: SilentLink) -> None:
        self._silent.append(link)
        if not link.late:
            for connection in self._connections.values():
                if set(connection.ends) == {link.source, link.target}:
                    connection.dead.add(link.source)

    def swallowed_until_ms(self, connection: Connection, source: SlotProcess) -> float:
        """Returns when something that `source` says now will come through: at once, later, or never."""
        target = connection.peer(source)
        silent = [link for link in self._silent if (link.source, link.target) == (source, target)]
        until = max((link.until_ms for link in silent), default=0.0)
        return math.inf if source in connection.dead else until

    def arrival(self, connection: Connection, source: SlotProcess, earliest_ms: float) -> float:
        """Returns when something that `source` says now arrives; what it says later arrives later."""
        swallowed_until_ms = self.swallowed_until_ms(connection, source)
        if swallowed_until_ms > self.world.now_ms:
            self.world.hits.add(SWALLOWED)
        return max(earliest_ms, self.world.now_ms + self.world.delay(self.typical_ms), swallowed_until_ms)

    def connect(self, attempt: AttemptId, channel: ChannelId, sender: SlotProcess, receiver: SlotProcess) -> None:
        """Connects, which takes both directions: a connection that is opened while one is silent never carries."""
        connection = self.connection(attempt, channel)
        if sender is receiver:
            connection.accepted = True
            return
        if any(self.swallowed_until_ms(connection, end) > self.world.now_ms for end in (sender, receiver)):
            connection.dead = {sender, receiver}
        self._watches.setdefault(sender, {})[attempt, channel] = PeerWatch("receiver", self.patience_ms)
        if not connection.dead and receiver.alive:
            connection.accepted = True
            self._watches.setdefault(receiver, {})[attempt, channel] = PeerWatch("sender", self.patience_ms)

    def check_connected(self, attempt: AttemptId, execution: ExecutionGraph) -> None:
        """Raises a Violation if the job is said to be running while a channel was never connected."""
        for slot in range(execution.slots):
            for subtask in execution.plan(slot).subtasks:
                for channel in (channel for output in subtask.outputs for channel in output.channels):
                    if not self.connection(attempt, channel).accepted:
                        raise Violation("connected", f"{attempt} is said to be running, but {channel} is not connected")

    def watch(self, process: SlotProcess) -> None:
        """Looks at the channels of a process. Their other ends have shown life in the meantime, if they could."""
        now_ms = self.world.now_ms
        for (attempt, channel), watch in self._watches.get(process, {}).items():
            connection = self.connection(attempt, channel)
            peer = connection.peer(process)
            assert peer is not None
            speaks = peer.alive and peer.paused_until_ms <= now_ms and not connection.closed
            if speaks and self.swallowed_until_ms(connection, peer) <= now_ms:
                watch.heard()
            why = watch.look(now_ms)
            if why is not None and process not in connection.told:
                self.world.hits.add(SILENT_PEER)
                self._tell(process, attempt, channel, connection, why)

    # --- ends of connections ---

    def close_all(self, process: SlotProcess, attempt: AttemptId) -> None:
        """Ends the channels that this process has in this attempt and in earlier ones; their other ends hear of it."""
        self.left[process] = max(self.left.get(process, attempt), attempt)
        watches = self._watches.get(process, {})
        self._watches[process] = {key: watch for key, watch in watches.items() if key[0] > attempt}
        self._end_all(process, lambda of: of <= attempt)

    def process_ended(self, process: SlotProcess) -> None:
        """Ends the channels of a process, as its kernel does; a machine that vanished does not."""
        self._end_all(process, lambda of: True)

    def _end_all(self, process: SlotProcess, wanted: Callable[[AttemptId], bool]) -> None:
        for (of, channel), connection in self._connections.items():
            if wanted(of) and not connection.closed and process in connection.ends:
                connection.closed = True
                peer = connection.peer(process)
                heard = self.swallowed_until_ms(connection, process) <= self.world.now_ms
                if heard and peer is not None and peer is not process:
                    self._tell(peer, of, channel, connection, "its peer closed it")

    def refuse(self, attempt: AttemptId, channel: ChannelId, connection: Connection) -> None:
        connection.closed = True
        assert connection.sender is not None
        self._tell(connection.sender, attempt, channel, connection, "refused")

    def _tell(self, end: SlotProcess, attempt: AttemptId, channel: ChannelId, connection: Connection, why: str) -> None:
        """Tells a process once that its channel is broken."""

        def tell() -> None:
            if not self.has_left(end, attempt):
                end.deliver(lambda: end.runtime.on_channel_broken(attempt, channel, why))

        if end.alive and end not in connection.told:
            connection.told.add(end)
            label = f"channel {channel} of {attempt} broke"
            self.world.after(self.world.delay(2 * self.typical_ms), end, label, tell)

    def break_connection(self, attempt: AttemptId, channel: ChannelId, after_ms: float) -> None:
        connection = self.connection(attempt, channel)

        def broken() -> None:
            connection.broken = True
            for end in connection.ends:
                self._tell(end, attempt, channel, connection, "simulated reset")

        self.world.hits.add("channel: broken")
        self.world.after(after_ms, None, f"channel {channel} of {attempt} breaks", broken)


class SimTransport:
    """The `Transport` port of one slot. Frames in flight still arrive after the slot has left their attempt."""

    def __init__(self, network: Network, process: SlotProcess) -> None:
        self._network = network
        self._process = process
        self._watch()

    def _watch(self) -> None:
        self._network.watch(self._process)
        period_ms = look_period_ms(self._network.patience_ms)
        self._network.world.after(period_ms, self._process, "looks at its channels", self._watch)

    def _has_left(self, attempt: AttemptId) -> bool:
        return self._network.has_left(self._process, attempt)

    def open(self, attempt: AttemptId, channel: ChannelId, address: str, schema: pa.Schema) -> None:
        self._process.touch("open")
        if self._has_left(attempt):
            return
        network, connection = self._network, self._network.connection(attempt, channel)
        connection.schema = schema
        connection.sender = self._process
        receiver = connection.receiver = network.addresses.get(address)
        if receiver is None:
            network.break_connection(attempt, channel, 0.0)
            return
        network.connect(attempt, channel, self._process, receiver)
        if connection.accepted and network.has_left(receiver, attempt):
            network.refuse(attempt, channel, connection)
        elif connection.accepted and connection.grant_total:  # a receiver that is dead by now grants nothing
            self._deliver_grant(connection, attempt, channel)

    def send(self, attempt: AttemptId, channel: ChannelId, frame: Frame) -> None:
        self._process.touch("frame")
        network, world = self._network, self._network.world
        connection = network.connection(attempt, channel)
        if connection.sender is not self._process or connection.receiver is None or self._has_left(attempt):
            return
        if isinstance(frame.element, pa.RecordBatch) and not frame.element.schema.equals(connection.schema):
            raise Violation("schema", f"{channel}: {frame.element.schema} where {connection.schema} was opened")
        connection.sent_bytes += frame.size
        if frame.size and connection.sent_bytes - frame.size >= connection.grant_total:
            raise Violation(
                "credit", f"{channel}: {connection.sent_bytes} bytes sent, {connection.grant_total} granted"
            )
        if connection.broken or connection.closed:
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
            if receiver.alive and not connection.broken:
                label = f"frame {channel} {frame.sequence} of {attempt}"
                world.after(0.0, receiver, label, lambda: receiver.deliver(taken))

        def taken() -> None:
            refused = receiver.runtime.refused
            receiver.runtime.on_frame(attempt, channel, frame)
            if receiver.runtime.refused != refused:
                world.hits.add("slot: refuses a frame of another attempt")

        arrival = network.arrival(connection, self._process, connection.frames_until_ms)
        if arrival < math.inf:
            connection.frames_until_ms = arrival
            world.at(arrival, None, "net", arrive)

    def grant(self, attempt: AttemptId, channel: ChannelId, granted_total: int) -> None:
        self._process.touch("grant")
        if self._has_left(attempt):
            return
        connection = self._network.connection(attempt, channel)
        connection.grant_total = max(connection.grant_total, granted_total)
        if connection.sender is not None and not connection.closed:
            self._deliver_grant(connection, attempt, channel)

    def _deliver_grant(self, connection: Connection, attempt: AttemptId, channel: ChannelId) -> None:
        """Delivers the newest grant; grants are running totals, so one that is not higher says nothing."""
        world, sender, receiver = self._network.world, connection.sender, connection.receiver
        total = connection.grant_total
        assert sender is not None and receiver is not None
        if total <= connection.grant_sent:
            return
        connection.grant_sent = total

        def taken() -> None:
            if not connection.broken:
                sender.deliver(lambda: sender.runtime.on_grant(attempt, channel, total))

        arrival = self._network.arrival(connection, receiver, connection.grants_until_ms)
        if arrival < math.inf:
            connection.grants_until_ms = arrival
            world.at(arrival, sender, f"grant {channel} {total} of {attempt}", taken)

    def close(self, attempt: AttemptId) -> None:
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
