"""`JobStatus` says what a job is doing now. HTTP, `weir status`, the live view, metrics and Dagster show it.

The JobMaster knows the present; earlier attempts and earlier JobMasters are known from the job's timeline (`Past`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from engine.core.sinks import Guarantee
from engine.graph.job_graph import JobGraph, JobVertex
from engine.jobmaster.events import AttemptFailed
from engine.jobmaster.figures import Rate
from engine.jobmaster.gatekeeper import HeldEpoch
from engine.jobmaster.master import JobMaster, Phase
from engine.protocol import ledger
from engine.protocol.config import CheckpointingMode
from engine.protocol.ids import SubtaskId
from engine.protocol.messages import LongStep, SubtaskTotals
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.protocol.watermark_alignment import AlignmentWait


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """The flow of records through a subtask or a vertex.

    Rows and `…_ms` are totals of the attempt; rates and shares cover the last seconds. `watermark_ms` is None at the
    start (−∞), at the end (+∞), and where event time is not used.
    """

    rows_in: int
    rows_out: int
    busy_ms: float
    back_pressured_ms: float
    idle_ms: float
    rows_in_per_s: float
    rows_out_per_s: float
    busy: float
    back_pressured: float
    idle: float
    watermark_ms: int | None
    lag_ms: int | None
    finished: bool


class SubtaskStatus(Flow, frozen=True, kw_only=True):
    """A subtask. `gauges`: what the gauges of its functions show, by operator and name.

    `waits`: set while a source waits for the others of its alignment group. It is idle meanwhile, and not stuck.
    """

    subtask: int
    slot: int
    gauges: dict[str, dict[str, float]] = {}
    waits: AlignmentWait | None = None


class VertexStatus(Flow, frozen=True, kw_only=True):
    """A vertex: rows and rates are the sum of its subtasks', shares their mean, the watermark is the lowest."""

    id: str
    label: str
    operators: list[str]
    parallelism: int
    subtasks: list[SubtaskStatus]


class SlotStatus(msgspec.Struct, frozen=True):
    """A registered Spark task. `slot` is None while the task is not used; `task` is Spark's task id.

    `slow_step` says where the task thread is if it has been in one step for long.
    """

    slot: int | None
    pid: int
    address: str
    task: int
    slow_step: LongStep | None = None


class SinkStatus(msgspec.Struct, frozen=True):
    """The progress of a sink. `rows` counts up to the newest epoch: readers can see them."""

    rows: int
    watermark_ms: int | None
    lag_ms: int | None


class CheckpointStatus(Enum):
    """HELD: a commit gate refuses the epoch, and a person has to decide. PUBLISHED: the epoch exists; it is being
    committed, or the next restore commits it."""

    TRIGGERED = "triggered"
    HELD = "held"
    PUBLISHED = "published"
    COMPLETED = "completed"
    ABORTED = "aborted"


class CheckpointSummary(msgspec.Struct, kw_only=True):
    """One checkpoint, without its parts. A field that is not known yet is None."""

    checkpoint: int
    attempt: str
    triggered_at_ms: int
    status: CheckpointStatus = CheckpointStatus.TRIGGERED
    ended_at_ms: int | None = None
    duration_ms: float | None = None
    epoch: int | None = None
    state_bytes: int | None = None
    start_delay_ms: float | None = None
    alignment_ms: float | None = None
    sync_ms: float | None = None
    async_ms: float | None = None
    final: bool = False
    why: str = ""
    detail: str = ""


class Checkpoints(msgspec.Struct, frozen=True):
    """The checkpoints of a job. `completed` and `failed` count since this JobMaster started."""

    interval_ms: int | None
    completed: int
    failed: int
    last: CheckpointSummary | None
    pending: list[int]


class StandbyStatus(msgspec.Struct, frozen=True):
    """The second JobMaster that takes over when this one dies. `doing` says what it does, in words."""

    ready: bool
    doing: str


class RescaleFigures(msgspec.Struct, frozen=True):
    """The rescales of a job that its history knows. `under_way` says what the one that is not over does; else empty."""

    completed: int = 0
    failed: int = 0
    last_pause_ms: float | None = None
    under_way: str = ""


class Past(msgspec.Struct, frozen=True):
    """Facts from the timeline that a JobMaster does not know, since it may have been started long after the job."""

    started_at_ms: int | None
    restarts: int
    last_checkpoint: CheckpointSummary | None
    rescales: RescaleFigures = RescaleFigures()


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    path: str
    phase: Phase
    generation: int
    attempt: int
    parallelism: int
    slots_needed: int
    waiting_ms: int | None
    """How long the job has been waiting for slots; None if it is not."""
    refusal: str = ""
    """Why the last slot was refused, while slots are missing."""
    connecting: list[int] = []
    """The slots with a channel whose receiver has not answered yet, while the job is deployed."""
    guarantee: str
    started_at_ms: int | None
    uptime_ms: int | None
    restarts: int
    last_failure: AttemptFailed | None
    jobmaster_deaths: int = 0
    last_death: str = ""
    standby: StandbyStatus | None = None
    """None if the job was started without a standby."""
    epoch: int
    checkpoints: Checkpoints
    rescales: RescaleFigures = RescaleFigures()
    committed_rows: dict[str, int]
    read_rows: dict[str, int]
    malformed_rows: dict[str, int]
    late_rows: dict[str, int]
    """Records that windows dropped because they came after their window had fired, up to the newest epoch."""
    untimed_rows: dict[str, int]
    """Records without an event time, which are in no window."""
    failed_rows: dict[str, int] = {}
    """Records that operators left out because they could not process them (`on_error`), up to the newest epoch."""
    withheld_rows: dict[str, int] = {}
    """Rows that a commit gate kept out of a sink's table: discarded, or dead letters."""
    held: list[HeldEpoch] = []
    """The sinks of the epoch that a commit gate holds until a person decides."""
    user_counts: dict[str, dict[str, int]] = {}
    """The counters of functions by operator and name, up to the newest epoch."""
    slots: list[SlotStatus]
    spark_ui: str | None
    vertices: list[VertexStatus]
    sinks: dict[str, SinkStatus]

    @property
    def running(self) -> bool:
        """True while records can flow."""
        return self.phase is Phase.RUNNING


def describe(master: JobMaster, past: Past, path: str, spark_ui: str | None, wall_ms: int, now_ms: float) -> JobStatus:
    graph, totals = master.execution.graph, master.ledger
    vertices = [describe_vertex(master, vertex.id, wall_ms) for vertex in graph.vertices]
    sources = [vertex.source.uid for vertex in graph.vertices if vertex.source]
    waited_ms = master.waited_ms(now_ms)
    since_ms = master.stats.running_since_ms if master.phase is Phase.RUNNING else None
    return JobStatus(
        job=graph.name,
        path=path,
        phase=master.phase,
        generation=master.attempt.generation,
        attempt=master.attempt.attempt,
        parallelism=max(vertex.parallelism for vertex in graph.vertices),
        slots_needed=master.execution.slots,
        waiting_ms=None if waited_ms is None else int(waited_ms),
        refusal=master.refusal,
        connecting=master.connecting,
        guarantee=guarantee(graph),
        started_at_ms=past.started_at_ms,
        uptime_ms=wall_ms - since_ms if since_ms is not None else None,
        restarts=past.restarts,
        last_failure=master.stats.last_failure,
        epoch=master.newest.epoch if master.newest else 0,
        checkpoints=Checkpoints(
            graph.checkpoints.interval_ms,
            master.stats.checkpoints_completed,
            master.stats.checkpoints_failed,
            past.last_checkpoint,
            [p.checkpoint for p in master.coordinator.pending] if master.coordinator else [],
        ),
        rescales=past.rescales,
        committed_rows={uid: totals.get(ledger.sink_rows(uid), 0) for uid, _ in graph.sinks},
        read_rows={uid: totals.get(ledger.source_rows(uid), 0) for uid in sources},
        malformed_rows={uid: totals.get(ledger.malformed_rows(uid), 0) for uid in sources},
        late_rows=ledger.by_uid(ledger.late_rows, totals),
        untimed_rows=ledger.by_uid(ledger.untimed_rows, totals),
        failed_rows=ledger.by_uid(ledger.failed_rows, totals),
        withheld_rows=ledger.by_uid(ledger.withheld_rows, totals),
        held=master.held,
        user_counts=ledger.user_counts([uid for vertex in graph.vertices for uid in vertex.uids], totals),
        slots=[
            SlotStatus(s.index, s.pid, s.address, s.task_attempt, s.step if s.slow_reported else None)
            for s in master.slots.all
        ],
        spark_ui=spark_ui,
        vertices=vertices,
        sinks={
            operator.uid: SinkStatus(totals.get(ledger.sink_rows(operator.uid), 0), shown.watermark_ms, shown.lag_ms)
            for vertex, shown in zip(graph.vertices, vertices, strict=True)
            for operator in vertex.operators
            if operator.sink is not None
        },
    )


def guarantee(graph: JobGraph) -> str:
    """Returns the weakest guarantee of engine and sinks, in words. All sources so far can be reset."""
    if graph.checkpoints.interval_ms is None:
        return "at most once between checkpoints made by hand"
    sinks = [sink.guarantee for _, sink in graph.sinks]
    weakest = graph.checkpoints.mode is CheckpointingMode.AT_LEAST_ONCE or Guarantee.AT_LEAST_ONCE in sinks
    return str((Guarantee.AT_LEAST_ONCE if weakest else Guarantee.EXACTLY_ONCE).value)


def describe_vertex(master: JobMaster, vertex_id: str, wall_ms: int) -> VertexStatus:
    vertex = master.execution.graph.vertex(vertex_id)
    return _vertex(vertex, [_subtask(master, SubtaskId(vertex_id, i), wall_ms) for i in range(vertex.parallelism)])


def _vertex(vertex: JobVertex, subtasks: Sequence[SubtaskStatus]) -> VertexStatus:
    def mean(shares: Sequence[float]) -> float:
        return round(sum(shares) / len(shares), 3)

    lowest = min(subtasks, key=lambda s: (s.watermark_ms is not None, s.watermark_ms))  # no watermark is lowest
    return VertexStatus(
        id=vertex.id,
        label=vertex.label,
        operators=vertex.uids,
        parallelism=vertex.parallelism,
        rows_in=sum(s.rows_in for s in subtasks),
        rows_out=sum(s.rows_out for s in subtasks),
        busy_ms=sum(s.busy_ms for s in subtasks),
        back_pressured_ms=sum(s.back_pressured_ms for s in subtasks),
        idle_ms=sum(s.idle_ms for s in subtasks),
        rows_in_per_s=sum(s.rows_in_per_s for s in subtasks),
        rows_out_per_s=sum(s.rows_out_per_s for s in subtasks),
        busy=mean([s.busy for s in subtasks]),
        back_pressured=mean([s.back_pressured for s in subtasks]),
        idle=mean([s.idle for s in subtasks]),
        watermark_ms=lowest.watermark_ms,
        lag_ms=lowest.lag_ms,
        finished=all(s.finished for s in subtasks),
        subtasks=list(subtasks),
    )


_STANDS_STILL = Rate(0.0, 0.0, 0.0, 0.0, 0.0)


def _subtask(master: JobMaster, subtask: SubtaskId, wall_ms: int) -> SubtaskStatus:
    totals = master.totals.get(str(subtask), SubtaskTotals())
    rate = master.rates.of(str(subtask)) or _STANDS_STILL
    watermark_ms = None if totals.watermark_ms in (MIN_WATERMARK, MAX_WATERMARK) else totals.watermark_ms
    return SubtaskStatus(
        subtask=subtask.index,
        slot=master.execution.slot_of(subtask),
        rows_in=totals.rows_in,
        rows_out=totals.rows_out,
        busy_ms=totals.busy_ms,
        back_pressured_ms=totals.back_pressured_ms,
        idle_ms=totals.idle_ms,
        rows_in_per_s=round(rate.rows_in_per_s, 1),
        rows_out_per_s=round(rate.rows_out_per_s, 1),
        busy=round(rate.busy, 3),
        back_pressured=round(rate.back_pressured, 3),
        idle=round(rate.idle, 3),
        watermark_ms=watermark_ms,
        lag_ms=wall_ms - watermark_ms if watermark_ms is not None else None,
        finished=totals.finished,
        gauges=totals.gauges,
        waits=totals.waits,
    )
