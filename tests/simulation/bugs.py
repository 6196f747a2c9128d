"""Planted bugs: each breaks a real module as a plausible mistake would, and names the invariants that must catch it.

`python -m tests.simulation.bugs` searches the first seed that catches each bug; the seeds found are recorded below.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa

import engine.jobmaster.master as master_module
import engine.jobmaster.publisher as publisher_module
import engine.protocol.watermark_alignment as alignment_module
import engine.runtime.slot as slot_module
import engine.snapshot.epoch_log as log_module
import engine.snapshot.garbage as garbage_module
import engine.snapshot.restore as restore_module
from engine.connectors.table import TableCommitter
from engine.connectors.table import log as table_log
from engine.connectors.table import sink as table_sink
from engine.connectors.table.folder import TableFolder
from engine.connectors.table.folds import FoldLog
from engine.connectors.table.log import Entries, TableLog
from engine.jobmaster.actions import Outcome, RunOffLoop
from engine.jobmaster.master import JobMaster, Phase
from engine.jobmaster.publisher import Publisher
from engine.jobmaster.slot_keeper import SlotKeeper, Unfit
from engine.protocol import ledger
from engine.protocol.alignment.aligned import AlignedBarriers
from engine.protocol.alignment.tracked import TrackedBarriers
from engine.protocol.channel_watch import PeerWatch
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.coordinator import CheckpointCoordinator, DiscardLateAck
from engine.protocol.epoch_records import Claimed, Created, LogRecord, RecordKind, epoch_after, fence_after
from engine.protocol.failures import AckOutcome
from engine.protocol.redistribution import Distribution
from engine.protocol.signals import Barrier
from engine.protocol.watermark_alignment import AlignmentGroups
from engine.runtime.chain import OperatorChain
from engine.runtime.deployment import Deployer
from engine.runtime.exchange.channels import InputChannel
from engine.runtime.exchange.partitioners import RebalancePartitioner
from engine.runtime.operators.base import WATERMARKS, Operator, OperatorSnapshot, RestoredState, StatePart
from engine.runtime.operators.connected import KeyedCoProcess
from engine.runtime.operators.joins.interval import IntervalJoin
from engine.runtime.operators.rows import KeyedRowOperator
from engine.runtime.operators.sink import SinkOperator
from engine.runtime.operators.window import WindowMerge
from engine.runtime.operators.window_clocks import WindowClocks
from engine.runtime.operators.window_combine import WindowCombine
from engine.runtime.slot import SlotRuntime
from engine.runtime.source_head import SourceHead
from engine.runtime.subtask import Subtask
from engine.runtime.timers import KeyTimers
from engine.snapshot.commits import commit_epoch
from engine.snapshot.epoch_log import EpochLog
from engine.state.joins.interval import Bounds, KeptRows
from engine.state.keyed.heap import HeapBackend
from engine.state.operator import OperatorBackend
from engine.state.partial_matches import WAITING as PATTERN_WAITING
from engine.state.partial_matches import PatternState
from engine.state.timers import TimerQueue
from engine.state.windows.spans import Spans
from tests.simulation.faults import STORE_SWAPPED, draw_plan
from tests.simulation.invariants import Violation
from tests.simulation.simulation import clean_state, run

Patches = Sequence[tuple[Any, str, Any]]


@dataclass(frozen=True)
class PlantedBug:
    """`invariants`: those that may catch the bug; which is first depends on the seed. `seed`: the first to catch it.

    `swapped_ms`: when an empty store takes the place of the job's own, beside what the seed draws. Some bugs need that
    in the very moment of another request, which 2,000 seeds did not meet by themselves.
    """

    name: str
    patches: Callable[[], Patches]
    invariants: tuple[str, ...]
    seed: int
    swapped_ms: float | None = None

    def violation(self, seed: int) -> Violation | None:
        """Runs a seed, with the bug where it is planted around this call."""
        plan = draw_plan(seed)
        if self.swapped_ms is not None:
            plan = replace(plan, blows=tuple(sorted([*plan.blows, (self.swapped_ms, STORE_SWAPPED)])))
        return run(seed, plan).violation

    @contextmanager
    def planted(self, seed: int) -> Iterator[None]:
        clean_state(draw_plan(seed).spec)  # computed and cached before the bug is planted
        with ExitStack() as stack:
            for target, attribute, replacement in self.patches():
                stack.enter_context(patch.object(target, attribute, replacement))
            yield


class _Unsynced:
    """A store whose sync does nothing."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def sync(self, paths: list[str]) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


# --- alignment and order ---


def _no_alignment() -> Patches:
    return [(AlignedBarriers, "blocked", lambda self, channel: False)]


def _counts_instead_of_aligning() -> Patches:
    """Removes the engine's own ledger check too, so that the simulator's check has to find the bug."""
    return [
        (Deployer, "_aligner", lambda self, mode, channels: TrackedBarriers(channels)),
        (ledger, "violations", lambda totals, base, mode: []),
    ]


def _barrier_overtakes_data() -> Patches:
    receive = InputChannel.receive

    def overtaking(self: InputChannel, frame: Any) -> None:
        receive(self, frame)
        if isinstance(frame.element, Barrier):
            self._queue.appendleft(self._queue.pop())

    return [(InputChannel, "receive", overtaking)]


def _stale_frames_accepted() -> Patches:
    def on_frame(self: SlotRuntime, attempt: Any, channel: Any, frame: Any) -> None:
        if self._deployment is not None:
            gate = self._deployment.gates.get(channel)
            if gate is not None:
                self._guarded(self._deployment.receivers[channel], lambda: gate.receive(channel, frame))

    return [(SlotRuntime, "on_frame", on_frame)]


def _silent_links_unnoticed() -> Patches:
    return [(PeerWatch, "look", lambda self, now_ms: None)]


# --- persistence ---


def _acknowledged_before_persisted() -> Patches:
    upload = slot_module.upload
    return [(slot_module, "upload", lambda store, *rest: upload(_Unsynced(store), *rest))]


def _rows_acknowledged_before_persisted() -> Patches:
    persist = table_sink._ParquetFile.persist

    def unsynced(self: Any) -> Any:
        self.store = _Unsynced(self.store)
        return persist(self)

    return [(table_sink._ParquetFile, "persist", unsynced)]


def _manifest_not_synced() -> Patches:
    def write_manifest(self: EpochLog, manifest: Any, *folder: Any) -> Any:
        return write(EpochLog(_Unsynced(self.store), self.paths), manifest, *folder)

    write = EpochLog.write_manifest
    return [(EpochLog, "write_manifest", write_manifest)]


def _snapshot_not_copied() -> Patches:
    """The panes are read when the upload runs, not at the barrier (C3)."""

    def snapshot(self: WindowMerge, checkpoint: int) -> OperatorSnapshot:
        def panes() -> pa.Table:
            return pa.concat_tables(
                [self._plan.partial_schema.empty_table(), *(p.compact() for p in self._panes.freeze())]
            )

        part = StatePart("panes", panes, tuple(self._plan.keys))
        return OperatorSnapshot(inline={WATERMARKS: self._clock.snapshot()}, parts=(part,))

    return [(WindowMerge, "snapshot", snapshot)]


def _heap_not_copied() -> Patches:
    """Values are read when the upload runs, not at the barrier."""

    def snapshot(self: HeapBackend) -> Any:
        return [(name, lambda held=held: held.layout.freeze(held.values)()) for name, held in self._states.items()]

    return [(HeapBackend, "snapshot", snapshot)]


# --- publication and fencing ---


def _commit_before_publish() -> Patches:
    def append(self: Publisher) -> RunOffLoop:
        publication, record = self._open, self._record
        assert publication.ref is not None and record is not None
        ref, manifest = publication.ref, publication.manifest

        def work() -> Any:
            commit_epoch(self._committers, CommitPermit.issue(ref), manifest)
            return self._epoch_log.publish(record, ref)

        return RunOffLoop("publish", work, self._appended)

    return [(Publisher, "_append_epoch", append)]


def _no_fence() -> Patches:
    """A new JobMaster only reads the epoch log; it does not write a fence."""
    claim = EpochLog.claim

    def unfenced(self: EpochLog, owner: str) -> Claimed | None:
        last = self.last()
        if last is None:
            return claim(self, owner)
        return Claimed(msgspec.structs.replace(fence_after(last, owner), number=last.number))

    return [(EpochLog, "claim", unfenced)]


class _Unfenced:
    """An epoch log that is claimed without a fence."""

    def __init__(self, log: EpochLog) -> None:
        self._log = log

    def claim(self, owner: str) -> Claimed | None:
        last = self._log.last()
        if last is None:
            return self._log.claim(owner)
        return Claimed(msgspec.structs.replace(fence_after(last, owner), number=last.number))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def _standby_writes_no_fence() -> Patches:
    """A standby believes that the JobMaster is dead, since it was told to take over. It may only be asleep."""
    take_over = JobMaster.take_over

    def trusting(self: JobMaster, now_ms: float) -> Any:
        self._publisher._epoch_log = _Unfenced(self._publisher._epoch_log)  # type: ignore[assignment]
        return take_over(self, now_ms)

    return [(JobMaster, "take_over", trusting)]


def _standby_claims_unasked() -> Patches:
    """A standby claims the job as soon as it is ready, as if that were part of getting ready."""
    on_tick = JobMaster.on_tick

    def eager(self: JobMaster, now_ms: float) -> Any:
        actions = on_tick(self, now_ms)
        if self.phase is Phase.STANDBY and self.slots.enough:
            actions += self._claiming.on_tick(now_ms)
        return actions

    return [(JobMaster, "on_tick", eager)]


def _publishes_behind_its_successor() -> Patches:
    """A JobMaster that finds its record number taken tries the next number instead of stopping."""

    def publish(self: EpochLog, last: LogRecord, manifest: Any) -> LogRecord | None:
        record = epoch_after(last, manifest)
        while True:
            match self.append(record):
                case Created.CREATED:
                    return record
                case Created.UNKNOWN:
                    return None
                case Created.EXISTS:
                    record = msgspec.structs.replace(record, number=record.number + 1)

    return [(EpochLog, "publish", publish)]


def _unknown_is_failure() -> Patches:
    appended = Publisher._appended

    def impatient(self: Publisher, record: Any, error: Any, now_ms: float) -> Any:
        if record is None and error is None:
            return self._give_up("no answer", now_ms)
        return appended(self, record, error, now_ms)

    return [(Publisher, "_appended", impatient)]


def _reused_epoch() -> Patches:
    """After a restart the number of the restored epoch is used again."""
    make = Publisher._make_manifest

    def reused(self: Publisher, completed: Any) -> Any:
        manifest = make(self, completed)
        restored, newest = self._restored, self.newest
        again = restored is not None and newest is not None and newest.epoch == restored.epoch
        return msgspec.structs.replace(manifest, epoch=manifest.epoch - 1) if again else manifest

    def unchecked(last: LogRecord, manifest: Any) -> LogRecord:
        return LogRecord(
            last.number + 1,
            RecordKind.EPOCH,
            last.generation,
            last.owner,
            manifest,
            manifest.checkpoint + 1,
            last.job_id,
        )

    return [(Publisher, "_make_manifest", reused), (log_module, "epoch_after", unchecked)]


def _checkpoint_ids_start_again() -> Patches:
    start = CheckpointCoordinator.__init__

    def again(self: Any, config: Any, attempt: Any, subtasks: Any, next_checkpoint: int, *rest: Any) -> None:
        start(self, config, attempt, subtasks, 1, *rest)

    return [(CheckpointCoordinator, "__init__", again)]


def _unreadable_record_is_a_failure() -> Patches:
    """A record that exists and can't be read counts as not written, even if it is the writer's own."""

    def append(self: EpochLog, record: LogRecord) -> Created:
        data, path = msgspec.json.encode(record), self.paths.log_record(record.number)
        outcome = self.store.create(path, data)
        if outcome is not Created.EXISTS:
            return outcome
        return Created.CREATED if self.store.read(path) == data else Created.EXISTS

    return [(EpochLog, "append", append)]


def _builds_on_names_that_are_not_durable() -> Patches:
    def claim(self: EpochLog, owner: str) -> Claimed | None:
        last = self.last()
        if last is not None and last.owner == owner:
            return Claimed(last)
        record = fence_after(last, owner)
        return Claimed(record) if self.append(record) is Created.CREATED else None

    return [(EpochLog, "claim", claim)]


def _trusts_the_list_of_a_table() -> Patches:
    """A compacted record repeats the records that a list shows, instead of those that must be there."""

    def below(self: TableLog, before: int) -> Entries:
        shown = set(self._store.list(f"{self._table}/_spark_metadata"))
        names = [self.record(n) for n in range(max(0, table_log.base_of(before)), before)]
        texts = [self._store.read(name).decode() for name in names if name in shown]
        return Entries([line for text in texts for line in text.split("\n")[1:]], sealed=True)

    return [(TableLog, "below", below)]


def _decides_by_the_wall_clock() -> Patches:
    """The JobMaster takes wall time for monotonic time."""
    on_tick = JobMaster.on_tick

    def by_the_wall(self: JobMaster, now_ms: float) -> Any:
        began = self.__dict__.setdefault("_began", now_ms - self._wall_ms())
        return on_tick(self, self._wall_ms() + began)

    return [(JobMaster, "on_tick", by_the_wall)]


def _gives_up_on_a_full_disk() -> Patches:
    """A commit that failed five times in a row ends the job."""
    restored = JobMaster._restored

    def impatient(self: JobMaster, manifest: Any, error: Any, now_ms: float) -> Any:
        times = self.__dict__["_in_a_row"] = self.__dict__.get("_in_a_row", 0) + 1 if error is not None else 0
        if times == 5:
            return self._stop(Outcome.FAILED, f"the store can't be used: {error}")
        return restored(self, manifest, error, now_ms)

    return [(JobMaster, "_restored", impatient)]


def _a_bad_host_ends_the_job() -> Patches:
    """A slot that does not see the store counts as the job's fault."""
    return [(SlotKeeper, "hopeless", property(lambda self: Unfit(self.refusal) if self._refused else None))]


def _runs_before_its_channels_are_connected() -> Patches:
    """The job counts as running once all slots are deployed."""
    start = JobMaster._start_if_deployed

    def hasty(self: JobMaster, current: Any, now_ms: float) -> Any:
        started = start(self, current, now_ms)
        if current.started:
            current.unconnected.clear()
        return started + self._running_if_connected(current) if current.started else started

    return [(JobMaster, "_start_if_deployed", hasty)]


def _an_empty_mount_is_a_new_job() -> Patches:
    """A claim that finds no log begins one, though nobody has started the job in this store."""
    last = EpochLog.last
    claim = (EpochLog, "last", lambda self: last(replace(self, begun=False)))
    return [claim, (EpochLog, "_is_beside", lambda self, number: True)]


def _a_claim_repeats_the_last_record() -> Patches:
    """A claim makes the last record durable by creating it once more, wherever the store is by then."""

    def made_durable(self: EpochLog, record: LogRecord) -> bool:
        return self._create(record) is Created.CREATED

    return [(EpochLog, "_made_durable", made_durable)]


def _a_record_counts_wherever_it_is() -> Patches:
    """Nobody looks whether a record that was created is in the store of the job."""
    return [(EpochLog, "append", EpochLog._create)]


def _commits_are_not_looked_for() -> Patches:
    """A commit counts, whatever folder it went to."""
    return [(EpochLog, "check_here", lambda self: None), (TableLog, "_check_there", lambda self, number: None)]


def _hung_io_is_not_noticed() -> Patches:
    def deaf(self: SlotKeeper, slot: Any, message: Any) -> Any:
        return on_heartbeat(self, slot, msgspec.structs.replace(message, io=None))

    on_heartbeat = SlotKeeper.on_heartbeat
    late = [(SlotKeeper, "give_up", lambda self, slots, why, now_ms: [])]
    return [(SlotKeeper, "on_heartbeat", deaf), *late]


# --- sinks ---


def _abort_drops_committables() -> Patches:
    on_abort = Subtask.on_abort

    def dropping(self: Subtask, checkpoint: int) -> None:
        on_abort(self, checkpoint)
        for operator in self._chain.operators:
            if isinstance(operator, SinkOperator):
                operator._pending.pop(checkpoint, None)

    return [(Subtask, "on_abort", dropping)]


def _carried_committed_twice() -> Patches:
    make = Publisher._make_manifest

    def forgetful(self: Publisher, completed: Any) -> Any:
        self._carried = []
        return make(self, completed)

    return [(Publisher, "_make_manifest", forgetful)]


def _committables_forgotten_at_the_next_barrier() -> Patches:
    """A sink hands over only the committables of this barrier, not those left by earlier ones."""
    pre_commit = SinkOperator._pre_commit

    def newest_only(self: SinkOperator, checkpoint: int) -> Any:
        return [c for c in pre_commit(self, checkpoint) if c.checkpoint == checkpoint]

    return [(SinkOperator, "_pre_commit", newest_only)]


def _restore_does_not_commit() -> Patches:
    recommit = Publisher.recommit

    def silent(self: Publisher, attempt: Any, done: Any) -> RunOffLoop:
        action, newest, job_id = recommit(self, attempt, done), self.newest, self.job_id

        def work() -> Any:
            for committer in self._committers.values():
                committer.claim(job_id, newest.epoch + 1 if newest else 1)
            return self._epoch_log.read_manifest(newest) if newest else None

        return RunOffLoop(action.name, work, action.done)

    return [(Publisher, "recommit", silent)]


def _restore_aborts_published_files() -> Patches:
    """The files that records name do not count as published."""
    abort, below = TableCommitter.abort_unknown, TableLog.below

    def eager(self: TableCommitter, permit: Any, attempt: Any) -> None:
        with patch.object(TableLog, "below", lambda *of: replace(below(*of), lines=[])):
            abort(self, permit, attempt)

    return [(TableCommitter, "abort_unknown", eager)]


# --- folding and collecting ---


def _fold_before_its_files_are_synced() -> Patches:
    fold = TableFolder._fold

    def hasty(self: TableFolder, *rest: Any) -> None:
        store, self._store = self._store, _Unsynced(self._store)
        try:
            fold(self, *rest)
        finally:
            self._store = store

    return [(TableFolder, "_fold", hasty)]


def _replaced_files_go_at_once() -> Patches:
    begin = TableFolder.__init__

    def impatient(self: TableFolder, *rest: Any) -> None:
        begin(self, *rest)
        self._keep_ms = 0.0

    return [(TableFolder, "__init__", impatient)]


def _fold_drops_the_rows_of_a_file() -> Patches:
    write = TableFolder._write

    def short(self: TableFolder, name: str, files: Sequence[Any]) -> Any:
        folded = write(self, name, files[:-1])
        return msgspec.structs.replace(folded, replaces=[file.name for file in files])

    return [(TableFolder, "_write", short)]


def _restore_does_not_know_folded_files() -> Patches:
    """What a restore deletes is decided without the folds: files that they replaced look like nobody's."""
    abort = TableCommitter.abort_unknown

    def forgetful(self: TableCommitter, *rest: Any) -> None:
        with patch.object(FoldLog, "kept", lambda _: {}):
            abort(self, *rest)

    return [(TableCommitter, "abort_unknown", forgetful)]


def _records_go_at_once() -> Patches:
    """Only the last compact record is kept, without regard to Spark's interval and to rewinds."""
    clean = TableFolder._clean

    def hasty(self: TableFolder, this: Any, now_ms: float) -> None:
        clean(self, this, now_ms)
        for number in self._log.numbers():
            if number < table_log.base_of(this.epoch):
                self._log.delete(number)

    return [(TableFolder, "_clean", hasty)]


def _log_forgets_fences() -> Patches:
    def forget(self: EpochLog, number: int, kept_from: int) -> bool:
        self.store.delete(self.paths.log_record(number))
        return True

    return [(EpochLog, "_forget", forget)]


def _gc_takes_the_generation_that_runs() -> Patches:
    """What no record names is garbage, also in the newest generation: there it may be a pending checkpoint."""
    snapshots = garbage_module._snapshots

    def one_more(log: EpochLog, last: LogRecord) -> Any:
        return snapshots(log, msgspec.structs.replace(last, generation=last.generation + 1))

    return [(garbage_module, "_snapshots", one_more)]


# --- restoring ---


def _watermark_not_restored() -> Patches:
    opened = WindowMerge.open

    def forgetful(self: WindowMerge, context: Any, restored: RestoredState | None) -> None:
        opened(self, context, restored)
        self._clocks = WindowClocks(context, None, 0)
        self._clock = self._forgotten = self._clocks.fired

    return [(WindowMerge, "open", forgetful)]


def _position_not_restored() -> Patches:
    opened = SourceHead.open

    def from_the_start(self: SourceHead, context: Any, restored: RestoredState | None, *others: Any) -> None:
        opened(self, context, None, *others)

    return [(SourceHead, "open", from_the_start)]


def _position_off_by_one() -> Patches:
    """A reader restarts at the last record read instead of the next one."""
    opened = SourceHead.open

    def behind(self: SourceHead, context: Any, restored: RestoredState | None, *others: Any) -> None:
        for inline in restored.inline if restored else []:
            for split in inline["splits"].values():
                split["position"] = max(0, split["position"] - 1)
        opened(self, context, restored, *others)

    return [(SourceHead, "open", behind)]


def _read_files_forgotten() -> Patches:
    snapshot = SourceHead.snapshot

    def forgetful(self: SourceHead, checkpoint: int) -> OperatorSnapshot:
        return OperatorSnapshot(inline={**snapshot(self, checkpoint).inline, "finished": {}})

    return [(SourceHead, "snapshot", forgetful)]


def _state_not_restored() -> Patches:
    return [(HeapBackend, "restore", lambda self, name, table: None)]


def _dealt_out_as(wrong: Mapping[Distribution, Distribution]) -> Patches:
    shares = restore_module.shares

    def mistaken(distribution: Distribution, *rest: Any) -> Any:
        return shares(wrong.get(distribution, distribution), *rest)

    return [(restore_module, "shares", mistaken)]


def _split_list_goes_to_everyone() -> Patches:
    return _dealt_out_as({Distribution.SPLIT: Distribution.UNION})


def _united_list_is_split() -> Patches:
    return _dealt_out_as({Distribution.UNION: Distribution.SPLIT})


def _broadcast_state_not_restored() -> Patches:
    restore = OperatorBackend.restore

    def forgetful(self: OperatorBackend, name: str, distribution: Distribution, table: pa.Table) -> None:
        if distribution is not Distribution.BROADCAST:
            restore(self, name, distribution, table)

    return [(OperatorBackend, "restore", forgetful)]


def _operator_state_not_copied() -> Patches:
    """Lists and maps are read when the upload runs, not at the barrier."""
    snapshot = OperatorBackend.snapshot

    def late(self: OperatorBackend) -> Any:
        def of_now(name: str) -> pa.Table:
            return next(table() for other, _, table in snapshot(self) if other == name)

        return [(name, distribution, partial(of_now, name)) for name, distribution, _ in snapshot(self)]

    return [(OperatorBackend, "snapshot", late)]


# --- races caused by repeated messages, and other bugs ---


def _repeated_ack_deletes_files() -> Patches:
    """A repeated acknowledgement of a completed checkpoint is treated as a late one (the simulator found this bug)."""
    acknowledge = CheckpointCoordinator.on_acknowledge

    def hasty(self: CheckpointCoordinator, ack: Any, now_ms: float) -> Any:
        outcome, actions = acknowledge(self, ack, now_ms)
        if outcome is AckOutcome.DUPLICATE and ack.checkpoint not in self._pending:
            return AckOutcome.DISCARDED, [DiscardLateAck(ack)]
        return outcome, actions

    return [(CheckpointCoordinator, "on_acknowledge", hasty)]


def _repeated_trigger_taken_twice() -> Patches:
    """A repeated trigger makes a second snapshot under the same number (a review found this bug)."""

    def trigger(self: Subtask, barrier: Barrier, suspend: bool = False) -> None:
        if isinstance(self._head, SourceHead):
            self._triggers.append((barrier, suspend))

    return [(Subtask, "trigger", trigger)]


def _epoch_not_kept_if_its_commit_fails() -> Patches:
    """An epoch counts among the kept ones only once it is committed (the simulator found this bug)."""
    published = Publisher._published

    def forgetful(self: Publisher, *rest: Any) -> Any:
        actions = published(self, *rest)
        newest = self._retained.pop()
        self.__dict__.setdefault("_late", []).append(newest)
        return actions

    sweep = Publisher.sweep

    def sweeping(self: Publisher, *rest: Any) -> RunOffLoop:
        self._retained.append(self.__dict__["_late"].pop())
        return sweep(self, *rest)

    return [(Publisher, "_published", forgetful), (Publisher, "sweep", sweeping)]


def _stopped_goes_on() -> Patches:
    """Offloaded work that ends after a cancel revives a stopped JobMaster (the simulator found this bug)."""
    return [(JobMaster, "_off_loop", lambda self, name, work, done: RunOffLoop(name, work, done))]


def _retention_forgets_what_is_needed() -> Patches:
    disposable = publisher_module.disposable
    return [(publisher_module, "disposable", lambda paths, files, *needed: disposable(paths, files, [], (), 1 << 30))]


def _pane_dropped_too_early() -> Patches:
    """A pane that overlapping windows share goes with the first of them."""
    return [(Spans, "last_window", Spans.first_window)]


def _rebalance_drops_the_remainder() -> Patches:
    """Rows are lost before they are counted as sent, so the equations of the ledger hold."""
    split = RebalancePartitioner.split

    def equal_shares(self: RebalancePartitioner, batch: pa.RecordBatch) -> Any:
        return split(self, batch.slice(0, batch.num_rows - batch.num_rows % self._targets))

    return [(RebalancePartitioner, "split", equal_shares)]


# --- timers ---


def _timers_not_restored() -> Patches:
    return [(KeyTimers, "load", lambda self, name, table: None)]


def _fired_timers_stay_in_the_snapshot() -> Patches:
    """A snapshot holds every timer that was ever registered, so a restore fires them again."""
    register = TimerQueue.register
    freeze = TimerQueue.freeze

    def remembered(self: TimerQueue, timestamp_ms: int, key: Any) -> None:
        register(self, timestamp_ms, key)
        vars(self).setdefault("ever", []).append((timestamp_ms, key))

    def frozen(self: TimerQueue) -> Any:
        everything = TimerQueue(self._fields)
        for timestamp_ms, key in vars(self).get("ever", []):
            register(everything, timestamp_ms, key)
        return freeze(everything)

    return [(TimerQueue, "register", remembered), (TimerQueue, "freeze", frozen)]


def _a_failed_record_is_not_undone() -> Patches:
    """A record that is left out leaves what its function did to the state of its key, and the timers it registered."""
    return [(KeyedRowOperator, "_undo_record", KeyedRowOperator._end_record)]


def _a_popped_timer_stays() -> Patches:
    """A timer is taken out only with the next one of its timestamp, so the last one fires twice."""
    pop = TimerQueue.pop

    def twice(self: TimerQueue, until_ms: int) -> Any:
        due = pop(self, until_ms)
        if due is not None and due != vars(self).get("last"):
            self.register(*due)
        vars(self)["last"] = due
        return due

    return [(TimerQueue, "pop", twice)]


def _watermark_overtakes_its_timers() -> Patches:
    on_watermark = KeyedRowOperator.on_watermark

    def hasty(self: KeyedRowOperator, timestamp_ms: int, out: Any) -> None:
        out.watermark(timestamp_ms)
        on_watermark(self, timestamp_ms, out)

    return [(KeyedRowOperator, "on_watermark", hasty)]


def _second_input_keeps_the_key_of_the_first() -> Patches:
    def second(self: KeyedCoProcess, batch: Any, records: Any, done: Any) -> Any:
        return self._any_number(batch, (self._second(record, self._process_context) for record in records), done)

    return [(KeyedCoProcess, "_apply_second", second)]


# --- joins ---


def _rows_of_a_join_not_restored() -> Patches:
    return [(IntervalJoin, "_restore", lambda self, side, rows: None)]


def _rows_of_a_join_go_too_early() -> Patches:
    """A row goes with its own time, and does not wait for rows that may match it."""
    return [(Bounds, "left_done", lambda self, watermark_ms: watermark_ms)]


def _rows_of_a_join_not_copied() -> Patches:
    """The upload writes the rows that are there when it runs, those behind the barrier included."""
    freeze = KeptRows.freeze
    return [(KeptRows, "freeze", lambda self, schema: lambda: freeze(self, schema)())]


# --- aligned sources ---


def _limits_of_the_attempt_before() -> Patches:
    """The JobMaster keeps what it knows of a group: after a restore nobody is told the limit, as it has not changed."""
    kept: dict[tuple[str, ...], AlignmentGroups] = {}

    def groups(members: Mapping[Any, Sequence[str]]) -> AlignmentGroups:
        of = tuple(f"{alignment} {subtask}" for alignment, several in members.items() for subtask in several)
        return kept.setdefault(of, AlignmentGroups(members))

    return [(master_module, "AlignmentGroups", groups)]


def _limit_of_the_fastest() -> Patches:
    def fastest(self: Any) -> int | None:
        return max((mark for mark in self.reported.values() if mark is not None), default=None)

    return [(alignment_module._Group, "minimum", fastest)]


def _limit_before_all_have_reported() -> Patches:
    """The minimum of those who have reported, though the slowest has not."""
    report = AlignmentGroups.on_report

    def hasty(self: AlignmentGroups, number: int, watermarks: Any) -> None:
        report(self, number, watermarks)
        for group in self._groups:
            if group.reported:
                group.unheard.clear()

    return [(AlignmentGroups, "on_report", hasty)]


# --- patterns ---


def _partial_matches_not_restored() -> Patches:
    restore = PatternState.restore

    def forgetful(self: PatternState, name: str, table: pa.Table) -> None:
        if name == PATTERN_WAITING:
            restore(self, name, table)

    return [(PatternState, "restore", forgetful)]


# --- rows that are held before the exchange ---


def _barrier_overtakes_held_rows() -> Patches:
    return [(OperatorChain, "release", lambda self: None)]


def _watermark_overtakes_held_rows() -> Patches:
    return [(WindowCombine, "on_watermark", Operator.on_watermark)]


# --- the log, trimmed ---


def _late_fence_is_a_claim() -> Patches:
    """A JobMaster that slept creates its fence where an old record was deleted, and does not look behind it."""
    return [(EpochLog, "append_fence", EpochLog.append)]


BUGS = (
    PlantedBug("no alignment", _no_alignment, ("ledger",), 21),
    PlantedBug("barriers are counted, not aligned", _counts_instead_of_aligning, ("ledger",), 21),
    PlantedBug("a barrier overtakes data", _barrier_overtakes_data, ("ledger",), 4),
    PlantedBug("frames of an attempt that is over are accepted", _stale_frames_accepted, ("channel_order",), 98),
    PlantedBug("nobody notices a silent link", _silent_links_unnoticed, ("finishes",), 180),
    PlantedBug("acknowledged before the state is synced", _acknowledged_before_persisted, ("durable",), 1),
    PlantedBug("acknowledged before the rows are synced", _rows_acknowledged_before_persisted, ("durable",), 0),
    PlantedBug("the manifest is not synced", _manifest_not_synced, ("durable",), 0),
    PlantedBug("panes are not copied at the barrier", _snapshot_not_copied, ("no_duplicate", "no_loss"), 31),
    PlantedBug("heap state is not copied at the barrier", _heap_not_copied, ("state",), 65),
    PlantedBug("committed before it is published", _commit_before_publish, ("commit",), 0),
    PlantedBug("a new JobMaster writes no fence", _no_fence, ("one_owner",), 2),
    PlantedBug("a standby writes no fence", _standby_writes_no_fence, ("one_owner",), 4),
    PlantedBug("a standby claims the job unasked", _standby_claims_unasked, ("standby",), 4),
    PlantedBug("a fenced JobMaster publishes behind its successor", _publishes_behind_its_successor, ("one_owner",), 7),
    PlantedBug("an unknown outcome is taken for a failure", _unknown_is_failure, ("durable",), 37),
    PlantedBug("an epoch number is used again", _reused_epoch, ("epochs",), 13),
    PlantedBug("checkpoint ids start again after a restart", _checkpoint_ids_start_again, ("internal_error",), 13),
    PlantedBug("an abort drops committables", _abort_drops_committables, ("ledger",), 11),
    PlantedBug("carried committables are committed twice", _carried_committed_twice, ("no_duplicate",), 27),
    PlantedBug("committables are not carried on", _committables_forgotten_at_the_next_barrier, ("ledger",), 11),
    PlantedBug("restoring does not commit", _restore_does_not_commit, ("commit",), 24),
    PlantedBug("restoring aborts published files", _restore_aborts_published_files, ("durable",), 20),
    PlantedBug("the watermark is not restored", _watermark_not_restored, ("no_reopened_window", "exact_result"), 5),
    PlantedBug("the source's position is not restored", _position_not_restored, ("ledger",), 13),
    PlantedBug("the source's position is one behind", _position_off_by_one, ("ledger",), 13),
    PlantedBug("files that were read are forgotten", _read_files_forgotten, ("ledger",), 2),
    PlantedBug("keyed state is not restored", _state_not_restored, ("state",), 40),
    PlantedBug("a repeated acknowledgement deletes an epoch's files", _repeated_ack_deletes_files, ("durable",), 410),
    PlantedBug("a repeated trigger makes a second snapshot", _repeated_trigger_taken_twice, ("ledger", "durable"), 373),
    PlantedBug("a stopped JobMaster goes on", _stopped_goes_on, ("stopped",), 314),
    PlantedBug("retention deletes what is needed", _retention_forgets_what_is_needed, ("durable",), 4),
    PlantedBug("a split list goes to everyone", _split_list_goes_to_everyone, ("no_duplicate",), 13),
    PlantedBug("a united list is split", _united_list_is_split, ("operator_state",), 13),
    PlantedBug("broadcast state is not restored", _broadcast_state_not_restored, ("broadcast_state",), 198),
    PlantedBug(
        "operator state is not copied at the barrier",
        _operator_state_not_copied,
        ("broadcast_state", "operator_state", "no_duplicate"),
        440,
    ),
    PlantedBug("an unreadable record is a failure", _unreadable_record_is_a_failure, ("durable", "log"), 499),
    PlantedBug(
        "a claim builds on a name that is not durable", _builds_on_names_that_are_not_durable, ("log", "one_owner"), 183
    ),
    PlantedBug("a compacted record repeats what a list shows", _trusts_the_list_of_a_table, ("commit",), 393),
    PlantedBug("the JobMaster decides by the wall clock", _decides_by_the_wall_clock, ("finishes",), 57),
    PlantedBug("a full disk ends the job", _gives_up_on_a_full_disk, ("finishes",), 259),
    PlantedBug("a slot that does not see the store ends the job", _a_bad_host_ends_the_job, ("finishes",), 18),
    PlantedBug("running before its channels are connected", _runs_before_its_channels_are_connected, ("connected",), 1),
    PlantedBug("an empty mount is taken for a new job", _an_empty_mount_is_a_new_job, ("mounted",), 39),
    PlantedBug("a claim repeats the last record", _a_claim_repeats_the_last_record, ("one_owner",), 112, 62.5),
    PlantedBug("a record counts wherever it is", _a_record_counts_wherever_it_is, ("mounted", "one_owner"), 39),
    PlantedBug("commits are not looked for", _commits_are_not_looked_for, ("commit", "mounted"), 971),
    PlantedBug("hung I/O is not noticed", _hung_io_is_not_noticed, ("finishes",), 70),
    PlantedBug("an epoch whose commit failed is not kept", _epoch_not_kept_if_its_commit_fails, ("retained",), 24),
    PlantedBug("timers are not restored", _timers_not_restored, ("timers",), 205),
    PlantedBug("fired timers stay in the snapshot", _fired_timers_stay_in_the_snapshot, ("timers",), 205),
    PlantedBug("a failed record is not undone", _a_failed_record_is_not_undone, ("no_phantom",), 23),
    PlantedBug("a timer fires twice", _a_popped_timer_stays, ("timers",), 23),
    PlantedBug("a watermark overtakes its timers", _watermark_overtakes_its_timers, ("watermark_order",), 23),
    PlantedBug("the second input has no key", _second_input_keeps_the_key_of_the_first, ("state", "no_loss"), 66),
    PlantedBug("the rows of a join are not restored", _rows_of_a_join_not_restored, ("no_loss",), 209),
    PlantedBug("the rows of a join go too early", _rows_of_a_join_go_too_early, ("no_loss",), 9),
    PlantedBug("the rows of a join are not copied", _rows_of_a_join_not_copied, ("no_duplicate",), 209),
    PlantedBug("limits of the attempt before", _limits_of_the_attempt_before, ("drift", "finishes"), 67),
    PlantedBug("sources are aligned to the fastest", _limit_of_the_fastest, ("drift",), 109),
    PlantedBug("a limit before all have reported", _limit_before_all_have_reported, ("drift",), 89),
    PlantedBug("partial matches are not restored", _partial_matches_not_restored, ("no_loss",), 1461),
    PlantedBug("a shared pane goes with its first window", _pane_dropped_too_early, ("exact_result", "no_loss"), 8),
    PlantedBug("a barrier overtakes held rows", _barrier_overtakes_held_rows, ("exact_result", "no_loss"), 8),
    PlantedBug("a watermark overtakes held rows", _watermark_overtakes_held_rows, ("exact_result", "no_loss"), 8),
    PlantedBug("rebalance drops the remainder", _rebalance_drops_the_remainder, ("no_loss",), 170),
    PlantedBug("a fold is made before its files are synced", _fold_before_its_files_are_synced, ("durable",), 64),
    PlantedBug("replaced files are deleted at once", _replaced_files_go_at_once, ("reader", "retained"), 64),
    PlantedBug("a fold drops the rows of a file", _fold_drops_the_rows_of_a_file, ("commit",), 64),
    PlantedBug("a restore deletes replaced files", _restore_does_not_know_folded_files, ("reader", "retained"), 64),
    PlantedBug("records of a table go at once", _records_go_at_once, ("durable",), 64),
    PlantedBug("the log forgets fences", _log_forgets_fences, ("durable",), 64),
    PlantedBug("gc deletes a pending checkpoint", _gc_takes_the_generation_that_runs, ("durable", "pending"), 383),
    PlantedBug("a fence in the place of a deleted record is a claim", _late_fence_is_a_claim, ("one_owner",), 595),
)


def search(bug: PlantedBug, seeds: range) -> tuple[int | None, dict[str, int]]:
    """Returns the first seed at which an expected invariant catches the bug, and the other violations until then."""
    others: dict[str, int] = {}
    for seed in seeds:
        with bug.planted(seed):
            violation = bug.violation(seed)
        if violation is None:
            continue
        if violation.invariant in bug.invariants and bug.violation(seed) is None:
            return seed, others
        others.setdefault(f"{violation.invariant}: {violation.message.splitlines()[0][:150]}", seed)
    return None, others


def main() -> int:
    wanted = sys.argv[1:]
    for bug in BUGS:
        if not wanted or any(word in bug.name for word in wanted):
            seed, others = search(bug, range(2000))
            print(f"{bug.name}: seed {seed}", others or "", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
