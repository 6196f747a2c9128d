"""The messages between the JobMaster and its slots. Each message about an attempt carries the attempt's id."""

from __future__ import annotations

import msgspec

from engine.protocol.failures import Fault, Raised
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import Committable, ManifestRef, SubtaskState, Timings
from engine.protocol.scaling import Scaling
from engine.protocol.state_proof import StateDigest, SubtaskDigests
from engine.protocol.watermark_alignment import AlignmentWait

# --- slot to JobMaster ---


class Register(msgspec.Struct, frozen=True, tag=True):
    """A Spark task has started and can be deployed to.

    `nonce` proves that it sees the store, `plan` that it runs the same code. `partition` is the number of the slot that
    it prefers; the JobMaster may give it another. `unseen` says why it could not read the nonce.
    """

    session: str
    address: str
    pid: int
    task_attempt: int
    nonce: str
    plan: str
    partition: int = 0
    unseen: str = ""


class SubtaskTotals(msgspec.Struct, frozen=True):
    """Running totals of one subtask since its attempt began: rows, and how its task thread spent its time (E2).

    `gauges`: what the gauges of its functions show now, by operator and name. `waits`: set while it waits for the other
    sources of its alignment group.
    """

    rows_in: int = 0
    rows_out: int = 0
    busy_ms: float = 0.0
    back_pressured_ms: float = 0.0
    idle_ms: float = 0.0
    watermark_ms: int | None = None
    finished: bool = False
    gauges: dict[str, dict[str, float]] = {}
    waits: AlignmentWait | None = None


class LongStep(msgspec.Struct, frozen=True):
    """The task thread has been in one step for `for_ms`, in this operator and subtask if that is known."""

    for_ms: float
    uid: str
    subtask: str
    stack: str


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """The slot is alive. `totals` holds the totals of its subtasks by subtask id, as text.

    `step` is None as long as the task thread makes progress. `io` is the I/O that has been under way for longest, if
    that is long: its `subtask` is the queue.
    """

    totals: dict[str, SubtaskTotals]
    step: LongStep | None = None
    io: LongStep | None = None


class Left(msgspec.Struct, frozen=True, tag=True):
    """The slot has left this attempt and every earlier one: the answer to `Rollback`."""

    attempt: AttemptId


class Deployed(msgspec.Struct, frozen=True, tag=True):
    """The subtasks of the slot are built. `digests` are those of the state that each was given, if they were wanted."""

    attempt: AttemptId
    digests: list[SubtaskDigests] = []


class Flowing(msgspec.Struct, frozen=True, tag=True):
    """A subtask of the slot has taken the first record of this attempt. Sent for attempts that want digests."""

    attempt: AttemptId


class Connected(msgspec.Struct, frozen=True, tag=True):
    """The receivers of all channels of the slot have answered. The job counts as running once all slots say so."""

    attempt: AttemptId


class Acknowledge(msgspec.Struct, frozen=True, tag=True):
    attempt: AttemptId
    checkpoint: int
    state: SubtaskState
    committables: list[Committable]
    ledger: dict[str, int]
    timings: Timings
    digests: list[StateDigest] = []
    """The digests of the subtask's state at the barrier, if the trigger asked for them."""

    @property
    def subtask(self) -> SubtaskId:
        return self.state.subtask


class Decline(msgspec.Struct, frozen=True, tag=True):
    """A subtask can't take part in a checkpoint. `write_failed` is True if it failed while it wrote its state."""

    attempt: AttemptId
    checkpoint: int
    subtask: SubtaskId
    write_failed: bool
    detail: str


class SubtaskFinished(msgspec.Struct, frozen=True, tag=True):
    attempt: AttemptId
    subtask: SubtaskId


class WatermarkReport(msgspec.Struct, frozen=True, tag=True):
    """The lowest watermarks of aligned source subtasks, by subtask id as text; None: it has nothing to read.

    `number` grows with each report of the slot: a repeated, older one must not count again.
    """

    attempt: AttemptId
    number: int
    watermarks: dict[str, int | None]


class TaskFailed(msgspec.Struct, frozen=True, tag=True):
    """A subtask failed. `corrupt` is True if a file of the snapshot was changed or is missing.

    `raised` is there if it is the job's own fault.
    `channel_broken` is True if a channel broke: mostly because of another failure, at its other end.
    """

    attempt: AttemptId
    subtask: SubtaskId | None
    uid: str
    error: str
    detail: str
    fault: Fault
    corrupt: bool = False
    raised: Raised | None = None
    channel_broken: bool = False


class OverBudget(msgspec.Struct, frozen=True, tag=True):
    """The slot uses more memory than its budget, and ends itself."""

    used_bytes: int
    budget_bytes: int


class NotBuilt(msgspec.Struct, frozen=True, tag=True):
    """The job can't be built in this slot, so it does not register, and waits until the JobMaster ends it."""

    pid: int
    task_attempt: int
    partition: int
    error: str
    fault: Fault
    raised: Raised | None = None


SlotMessage = (
    Register
    | NotBuilt
    | Heartbeat
    | Left
    | Deployed
    | Connected
    | Flowing
    | Acknowledge
    | Decline
    | SubtaskFinished
    | WatermarkReport
    | TaskFailed
    | OverBudget
)

# --- JobMaster to slot ---


class Welcome(msgspec.Struct, frozen=True, tag=True):
    generation: int


class Deploy(msgspec.Struct, frozen=True, tag=True):
    """The slot ends any earlier attempt, builds the subtasks of slot `slot`, restores them and answers `Deployed`.

    It builds them at this scaling, and compares the fingerprint of the graph with `plan`. `digests`: its answer proves
    what it restored.
    """

    attempt: AttemptId
    slot: int
    addresses: list[str]
    restore: ManifestRef | None
    job_id: str
    scaling: Scaling = Scaling()
    plan: str = ""
    digests: bool = False


class Start(msgspec.Struct, frozen=True, tag=True):
    """Every slot is deployed; the slot opens its channels and runs."""

    attempt: AttemptId


class Trigger(msgspec.Struct, frozen=True, tag=True):
    """Sources emit the barrier of this checkpoint. `triggered_at_ms` is Unix time; the start delay begins there.

    `suspend`: sources emit nothing behind the barrier. `digests`: subtasks acknowledge with digests of their state.
    `into`: the folder of the store for the state files, if they become a savepoint and nothing else.
    """

    attempt: AttemptId
    checkpoint: int
    triggered_at_ms: int
    suspend: bool = False
    digests: bool = False
    into: str = ""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Sources end as if they had read everything; all windows and timers fire."""

    attempt: AttemptId


class WatermarkLimits(msgspec.Struct, frozen=True, tag=True):
    """Sources of these alignment groups do not read splits whose watermarks are above the limit of their group.

    `number` grows with each announcement: a repeated, older one must not bring an old limit back.
    """

    attempt: AttemptId
    number: int
    limits: dict[str, int]


class NotifyComplete(msgspec.Struct, frozen=True, tag=True):
    attempt: AttemptId
    checkpoint: int


class NotifyAbort(msgspec.Struct, frozen=True, tag=True):
    attempt: AttemptId
    checkpoint: int


class Rollback(msgspec.Struct, frozen=True, tag=True):
    """The slot leaves this attempt and every earlier one, answers `Left` and stays registered."""

    attempt: AttemptId


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    reason: str


class EndProcess(msgspec.Struct, frozen=True, tag=True):
    """The slot's process ends at once, even if its task thread hangs; Spark starts another."""

    reason: str


class MasterHeartbeat(msgspec.Struct, frozen=True, tag=True):
    """Renews the slot's lease."""


MasterMessage = (
    Welcome
    | Deploy
    | Start
    | Trigger
    | Drain
    | WatermarkLimits
    | NotifyComplete
    | NotifyAbort
    | Rollback
    | Shutdown
    | EndProcess
    | MasterHeartbeat
)

_slot_decoder: msgspec.json.Decoder[SlotMessage] = msgspec.json.Decoder(SlotMessage)
_master_decoder: msgspec.json.Decoder[MasterMessage] = msgspec.json.Decoder(MasterMessage)


def encode(message: SlotMessage | MasterMessage) -> bytes:
    return msgspec.json.encode(message)


def decode_slot_message(data: bytes) -> SlotMessage:
    return _slot_decoder.decode(data)


def decode_master_message(data: bytes) -> MasterMessage:
    return _master_decoder.decode(data)
