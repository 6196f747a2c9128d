"""`Publisher` makes completed checkpoints into epochs. It owns the job's epoch log, from the claim to retention.

A publication asks the gates of sinks, writes the manifest, creates the epoch record (the commit point), and commits the
sinks' output. The Publisher tells the JobMaster its outcome: one of the classes below.

Invariants: only the owner of the log's last fence publishes; epochs are published one at a time and committed before
the next; a permit exists only for a published epoch. Until its gates have ruled, a publication can be given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from engine.core.connectors import calling
from engine.core.errors import Fenced, StoreError
from engine.core.sinks import Committer, Found, Withheld
from engine.graph.compatibility import Difference, check, gone_sinks, new_sinks
from engine.graph.description import describe, table_committer
from engine.graph.job_graph import JobGraph
from engine.jobmaster import events
from engine.jobmaster.actions import Action, Done, Note, RunOffLoop
from engine.jobmaster.gatekeeper import Gatekeeper, GateOutcome, HeldEpoch, Stopped
from engine.jobmaster.housekeeping import Housekeeping
from engine.protocol import ledger
from engine.protocol.checkpoint import CommitPermit, CompletedCheckpoint
from engine.protocol.epoch_records import Claimed, LogRecord
from engine.protocol.failures import CheckpointFailure
from engine.protocol.gate import Decision, GateAnswer, GateVerdict, Ruling
from engine.protocol.ids import AttemptId
from engine.protocol.job_description import JobDescription
from engine.protocol.manifest import Committable, Manifest, ManifestRef
from engine.protocol.savepoint import Stopping
from engine.snapshot.beginning import delete_claimed
from engine.snapshot.commits import commit_epoch
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.inputs import place_inputs
from engine.snapshot.retention import Needs, Snapshot, disposable

SWEEPS = 2
"""One sweep runs, and one waits for it: on a slow store there is never more to do."""
DELETES = 50
"""So many deletes of aborted checkpoints may wait."""


@dataclass(frozen=True)
class NotPublished:
    """No epoch record was created and none will be: the checkpoint can be aborted."""

    completed: CompletedCheckpoint
    failure: CheckpointFailure
    detail: str


@dataclass(frozen=True)
class Published:
    """The epoch record exists. The commit point has passed; the commits follow."""

    manifest: Manifest


@dataclass(frozen=True)
class Committed:
    """Every sink has committed the epoch."""

    completed: CompletedCheckpoint
    manifest: Manifest


@dataclass(frozen=True)
class CommitFailed:
    """The epoch is published, but a sink could not commit it. Restoring commits it again."""

    completed: CompletedCheckpoint
    error: BaseException


@dataclass(frozen=True)
class Replaced:
    """Another JobMaster owns the log: this one may neither publish nor commit."""

    detail: str


@dataclass(frozen=True)
class StoppedByGate:
    """The gate of a sink stops the job. Nothing of the epoch is published."""

    completed: CompletedCheckpoint
    why: str


PublicationOutcome = NotPublished | Published | Committed | CommitFailed | Replaced | StoppedByGate
Tell = Callable[[PublicationOutcome, float], list[Action]]
OffLoop = Callable[[str, Callable[[], Any], Done], RunOffLoop]


@dataclass
class Publication:
    """The one checkpoint that is being published. `withheld`: what its gates take off the ledger's totals."""

    completed: CompletedCheckpoint
    manifest: Manifest
    judged: bool = False
    withheld: ledger.Counters = field(default_factory=dict)
    ref: ManifestRef | None = None
    outcome_unknown: bool = False
    retry_at_ms: float | None = None


class Publisher:
    """`tell` brings an outcome to the JobMaster and returns what it decides; `off_loop` makes the action for I/O."""

    def __init__(
        self,
        graph: JobGraph,
        epoch_log: EpochLog,
        committers: Mapping[str, Committer],
        wall_ms: Callable[[], int],
        retry_ms: float,
        allows: Callable[[int], bool],
        off_loop: OffLoop,
        tell: Tell,
    ) -> None:
        self.newest: ManifestRef | None = None
        self.ledger: dict[str, int] = {}
        """The job's totals at the newest epoch."""
        self.verdicts: list[GateVerdict] = []
        """Those about the newest epoch that this JobMaster has published."""
        self._graph = graph
        self._epoch_log = epoch_log
        self._committers = dict(committers)
        self._wall_ms = wall_ms
        self._retry_ms = retry_ms
        self._allows = allows
        self._off_loop = off_loop
        self._tell = tell
        gates = {uid: sink.gate for uid, sink in graph.sinks if sink.gate is not None}
        self._gatekeeper = Gatekeeper(gates, wall_ms, retry_ms, self._gates_say)
        self._withheld: ledger.Counters = {}  # in this attempt, which counts all that its sinks wrote
        self._housekeeping = Housekeeping(epoch_log, committers, off_loop)
        self.dropped: list[Difference] = []
        """What the user has allowed to be dropped, as of the last restore."""
        self._targets: dict[str, Found] = {}  # by uid: what is in the targets of sinks
        self._record: LogRecord | None = None  # the newest record of the log: the next one is created after it
        self._description = describe(graph, JobDescription(), 1)  # the job now, with the first epoch of each sink
        self._restored: Manifest | None = None  # the manifest that this attempt goes on from
        self._carried: list[Committable] = []  # the newest epoch's, which later snapshots may still hold
        self._retained: list[ManifestRef] = []  # oldest first; a sweep forgets those that are not kept any more
        self._needs = Needs(epoch_log)
        self._sweeps = 0  # under way or waiting
        self._deletes = 0
        self._unswept: set[int] | None = None  # generations that may hold files to delete; None: all so far
        self._queue: deque[CompletedCheckpoint] = deque()
        self._publication: Publication | None = None

    @property
    def busy(self) -> bool:
        """True while the outcome of a publication is open: nothing may be restored, and a cancelled job waits.

        A job that fails meanwhile may end before its last epoch is committed. Its next start commits it.
        While its gates are asked, a publication is not open in this sense: no trace of it is in the store.
        """
        return self._publication is not None and self._publication.judged

    def publishes(self, checkpoint: int | None) -> bool:
        """True while the outcome of this checkpoint's publication is open."""
        publication = self._publication
        return publication is not None and publication.judged and publication.completed.checkpoint == checkpoint

    @property
    def job_id(self) -> str:
        """The id of the job in its store; known once the job is claimed."""
        assert self._record is not None
        return self._record.job_id

    @property
    def wakeup_ms(self) -> float | None:
        """The time at which `on_tick` asks the store or a gate again; None: there is nothing to repeat."""
        if self._publication is None:
            return None
        return self._publication.retry_at_ms if self._publication.judged else self._gatekeeper.wakeup_ms

    def on_tick(self, now_ms: float) -> list[Action]:
        publication = self._publication
        if publication is not None and not publication.judged:
            return self._gatekeeper.on_tick(now_ms)
        if publication is None or publication.retry_at_ms is None or now_ms < publication.retry_at_ms:
            return []
        publication.retry_at_ms = None
        return [self._append_epoch()]

    # ------------------------------------------------------------------ claim and restore

    def claim(self, owner: str, done: Done) -> RunOffLoop:
        """Appends a fence to the log. `done` gets `Claimed`, or None if the claim has to be tried again."""

        retained: list[ManifestRef] = []

        def work() -> Claimed | None:
            claimed = self._epoch_log.claim(owner)
            if claimed is not None:
                newest_first = list(islice(self._epoch_log.epochs(), self._graph.checkpoints.retained))
                retained[:] = reversed(newest_first)
            return claimed

        def claimed(claimed: Claimed | None, error: BaseException | None, now_ms: float) -> list[Action]:
            if claimed is not None:
                self._record = claimed.record
                self.newest = claimed.record.newest
                self._retained = retained
            return done(claimed, error, now_ms)

        return self._off_loop("claim", work, claimed)

    def recommit(self, attempt: AttemptId, done: Done) -> RunOffLoop:
        """Claims the sinks' targets, commits the newest epoch again and aborts output that no epoch knows.

        The newest epoch may have been published and not committed. `done` gets its manifest; None if there is no epoch.
        A job that has changed is compared with the epoch first: `done` gets IncompatibleJob if it can't go on.
        """
        assert not self.busy, "nothing is restored while a publication is open"
        assert self._record is not None, "the job is claimed before anything is restored"
        newest, job_id, record = self.newest, self.job_id, self._record

        def work() -> Manifest | None:
            with self._epoch_log.owned_by(record):
                return restored()

        def restored() -> Manifest | None:
            manifest = self._epoch_log.read_manifest(newest) if newest else None
            if manifest is not None:
                place_inputs(self._epoch_log, manifest)
            next_epoch = newest.epoch + 1 if newest else 1
            gone = self._gone(manifest)
            targets = self._look({**gone, **self._committers}, job_id, next_epoch - 1)
            if manifest is not None:
                self.dropped = check(self._graph, manifest, targets, self._allows(manifest.epoch))
            gone = {uid: committer for uid, committer in gone.items() if targets[uid].claimed}
            for uid, committer in (*gone.items(), *self._committers.items()):
                with calling(uid, None, committer, "claim()"):
                    committer.claim(job_id, next_epoch)
            permit = CommitPermit.issue(newest) if newest else None
            if permit is not None and manifest is not None:
                commit_epoch({**self._known(manifest), **gone}, permit, manifest)
            for uid, committer in self._committers.items():
                with calling(uid, None, committer, "begin()"):
                    committer.begin(next_epoch)
            for uid, committer in (*gone.items(), *self._committers.items()):
                with calling(uid, None, committer, "abort_unknown()"):
                    committer.abort_unknown(permit, attempt)
            self._check_targets([])
            return manifest

        return self._off_loop("restore", work, done)

    def _look(self, committers: Mapping[str, Committer], job_id: str, epoch: int) -> dict[str, Found]:
        """Returns what is in the targets. Later restores need not look again: only this JobMaster writes there now."""
        looked: dict[str, Found] = {}
        for uid, committer in committers.items():
            with calling(uid, None, committer, "look()"):
                looked[uid] = self._targets.get(uid) or committer.look(job_id, epoch)
        self._targets = {**looked, **dict.fromkeys(self._committers, Found())}
        return looked

    def _known(self, manifest: Manifest) -> dict[str, Committer]:
        """Returns the committers of the sinks that took part in this epoch.

        A rewind also hides what a table holds whose sink comes back now. A sink that can't rewind has come since.
        """
        new = new_sinks(self._graph, manifest)
        if manifest.rewound_to is not None:
            new = [uid for uid, sink in self._graph.sinks if uid in new and not sink.can_rewind]
        return {uid: committer for uid, committer in self._committers.items() if uid not in new}

    def _gone(self, manifest: Manifest | None) -> dict[str, Committer]:
        """Returns committers for tables whose sinks the job no longer has: what was published is never forgotten."""
        store, paths = self._epoch_log.store, self._epoch_log.paths
        gone = gone_sinks(self._graph, manifest) if manifest is not None else []
        committers = {sink.uid: table_committer(sink, store, paths) for sink in gone}
        return {uid: committer for uid, committer in committers.items() if committer is not None}

    def rescaled(self, graph: JobGraph) -> None:
        """The next attempts run the same job at another parallelism."""
        self._graph = graph

    def go_on_from(self, restored: Manifest | None) -> None:
        """Makes this manifest's totals the base of the next attempt's ledger."""
        self._description = describe(
            self._graph,
            restored.description if restored else JobDescription(),
            restored.epoch + 1 if restored else 1,
        )
        self._restored = restored
        self._withheld = {}
        self.ledger = dict(restored.ledger) if restored else {}

    # ------------------------------------------------------------------ publish

    def publish(self, completed: CompletedCheckpoint, now_ms: float) -> list[Action]:
        self._queue.append(completed)
        return self.publish_next(now_ms)

    def publish_next(self, now_ms: float) -> list[Action]:
        """Begins to publish the oldest waiting checkpoint, unless a publication is open."""
        if self._publication is not None or not self._queue:
            return []
        completed = self._queue.popleft()
        manifest, broken = self.manifest_of(completed)
        if broken:
            return self._tell(NotPublished(completed, CheckpointFailure.LEDGER_MISMATCH, broken), now_ms)
        self._publication = Publication(completed, manifest)
        return self._gatekeeper.judge(manifest, now_ms)

    # ------------------------------------------------------------------ gates

    @property
    def held(self) -> list[HeldEpoch]:
        """What waits for a person: the sinks of one epoch whose gates refuse it."""
        return self._gatekeeper.held

    def on_gate_answer(self, answer: GateAnswer, now_ms: float) -> list[Action]:
        return self._gatekeeper.on_answer(answer, now_ms)

    def rule(self, checkpoint: int, ruling: Ruling, now_ms: float) -> tuple[str, list[Action]]:
        """Carries out what a person decides about a held epoch. Returns why not, if it can't be done."""
        return self._gatekeeper.rule(checkpoint, ruling, now_ms)

    def _gates_say(self, outcome: GateOutcome, now_ms: float) -> list[Action]:
        publication = self._open
        if isinstance(outcome, Stopped):
            self._publication = None
            return self._tell(StoppedByGate(publication.completed, outcome.why), now_ms)
        publication.judged = True
        publication.manifest = msgspec.structs.replace(publication.manifest, verdicts=outcome.verdicts)
        if not outcome.refused_rows:
            return [self._write_off_loop(publication.manifest)]
        commits = publication.manifest.commits

        def work() -> dict[str, Withheld]:
            """Splits files. What is not published in the end is output that no epoch knows: a restore deletes it."""
            found = {}
            for uid, refused in outcome.refused_rows.items():
                with calling(uid, None, self._committers[uid], "withhold()"):
                    found[uid] = self._committers[uid].withhold([c for c in commits if c.uid == uid], refused)
            return found

        return [self._off_loop("gate", work, self._rows_withheld)]

    def _rows_withheld(
        self, found: dict[str, Withheld] | None, error: BaseException | None, now_ms: float
    ) -> list[Action]:
        publication = self._open
        if found is None:
            return self._give_up(str(error), now_ms)
        manifest = publication.manifest
        kept = {one.sink for one in manifest.verdicts if one.decision is Decision.DEAD_LETTER}
        for uid, withheld in found.items():
            ledger.add(publication.withheld, ledger.withheld(uid, withheld.rows, withheld.digest))
        publication.manifest = msgspec.structs.replace(
            manifest,
            commits=[c for c in manifest.commits if c.uid not in found]
            + [c for uid, withheld in found.items() if uid in kept for c in withheld.commits],
            ledger=ledger.total(manifest.ledger, [publication.withheld]),
            verdicts=[
                msgspec.structs.replace(one, withheld=found[one.sink].rows) if one.sink in found else one
                for one in manifest.verdicts
            ],
        )
        return [self._write_off_loop(publication.manifest)]

    # ------------------------------------------------------------------ the epoch

    def _write_off_loop(self, manifest: Manifest) -> RunOffLoop:
        return self._off_loop("manifest", lambda: self._write_manifest(manifest), self._manifest_written)

    def _write_manifest(self, manifest: Manifest) -> ManifestRef:
        """Looks for all files of the epoch after the last of them is written: the store may have been away."""
        ref = self._epoch_log.write_manifest(manifest)
        self._epoch_log.check_files(ref, manifest)
        self._check_targets(manifest.commits)
        return ref

    def _check_targets(self, committables: Sequence[Committable]) -> None:
        """Raises a StoreError if output is gone, or a target, or if the store of the job is away."""
        for uid, committer in self._committers.items():
            with calling(uid, None, committer, "check()"):
                committer.check([c for c in committables if c.uid == uid])
        self._epoch_log.check_here()

    def _commit(self, permit: CommitPermit, manifest: Manifest) -> None:
        """Commits an epoch. It counts only if the store is not away now: an empty folder may have taken it."""
        commit_epoch(self._committers, permit, manifest)
        self._epoch_log.check_here()

    def drop_waiting(self) -> list[CompletedCheckpoint]:
        """Forgets the checkpoints that have no trace in the store, and returns them: also the one that is judged."""
        waiting = list(self._queue)
        self._queue.clear()
        if self._publication is not None and not self._publication.judged:
            waiting.insert(0, self._publication.completed)
            self._publication = None
            self._gatekeeper.drop()
        return waiting

    def manifest_of(self, completed: CompletedCheckpoint) -> tuple[Manifest, str]:
        """Returns the manifest that this checkpoint would have as the next epoch, and what its ledger says against it.

        Savepoints that the job goes on behind have such a manifest, too, and are no epoch.
        """
        manifest = self._make_manifest(completed)
        return manifest, "; ".join(ledger.violations(manifest.ledger, self._base, self._graph.checkpoints.mode))

    def _make_manifest(self, completed: CompletedCheckpoint) -> Manifest:
        carried = [c for ack in completed.acks for c in ack.committables]
        published = {c.identity for c in self._carried}
        return Manifest(
            job=self._graph.name,
            epoch=self.newest.epoch + 1 if self.newest else 1,
            checkpoint=completed.checkpoint,
            attempt=completed.attempt,
            created_ms=self._wall_ms(),
            max_parallelism=self._graph.max_parallelism,
            subtasks=[ack.state for ack in completed.acks],
            commits=[c for c in carried if c.identity not in published],
            carried=carried,
            ledger=ledger.total(self._base, [*(ack.ledger for ack in completed.acks), self._withheld]),
            description=self._description,
            final=completed.final,
            drained=completed.stopping is Stopping.DRAIN,
        )

    @property
    def _base(self) -> dict[str, int]:
        """The ledger's totals at the epoch that this attempt goes on from."""
        return self._restored.ledger if self._restored else {}

    def _manifest_written(self, ref: ManifestRef | None, error: BaseException | None, now_ms: float) -> list[Action]:
        publication = self._open
        if ref is None:
            return self._give_up(str(error), now_ms)
        publication.ref = ref
        return [self._append_epoch()]

    def _append_epoch(self) -> RunOffLoop:
        publication, record = self._open, self._record
        assert publication.ref is not None and record is not None
        ref = publication.ref
        return self._off_loop("publish", lambda: self._epoch_log.publish(record, ref), self._appended)

    def _appended(self, record: LogRecord | None, error: BaseException | None, now_ms: float) -> list[Action]:
        publication = self._open
        if isinstance(error, Fenced):
            return self._tell(Replaced(str(error)), now_ms)
        if error is not None and not isinstance(error, StoreError):
            raise error
        if error is not None and not publication.outcome_unknown:
            return self._give_up(str(error), now_ms)
        if record is None:
            publication.outcome_unknown = True  # the record may exist now: repeat until the answer is definite
            publication.retry_at_ms = now_ms + self._retry_ms
            return [Note(events.PublishUnknown(publication.completed.checkpoint))]
        return self._published(publication, record, now_ms)

    def _give_up(self, detail: str, now_ms: float) -> list[Action]:
        completed = self._open.completed
        self._publication = None
        return self._tell(NotPublished(completed, CheckpointFailure.FINALIZE_FAILED, detail), now_ms)

    # ------------------------------------------------------------------ commit

    def _published(self, publication: Publication, record: LogRecord, now_ms: float) -> list[Action]:
        """Issues the permit and commits. Only now, because the commit point has passed."""
        manifest = publication.manifest
        self._record = record
        self.newest = record.newest
        assert self.newest is not None and self.newest.epoch == manifest.epoch
        self._needs.add(self.newest, manifest)
        self._retained.append(self.newest)  # also if its commit fails now: the restore commits it
        self._carried = manifest.carried
        ledger.add(self._withheld, publication.withheld)
        self.ledger = dict(manifest.ledger)
        self.verdicts = manifest.verdicts
        permit = CommitPermit.issue(self.newest)
        return [
            *self._tell(Published(manifest), now_ms),
            self._off_loop("commit", lambda: self._commit(permit, manifest), self._committed),
        ]

    def _committed(self, _: None, error: BaseException | None, now_ms: float) -> list[Action]:
        publication = self._open
        self._publication = None
        if error is not None:
            return self._tell(CommitFailed(publication.completed, error), now_ms)
        return self._tell(Committed(publication.completed, publication.manifest), now_ms)

    @property
    def _open(self) -> Publication:
        assert self._publication is not None
        return self._publication

    # ------------------------------------------------------------------ retention

    def sweep(self, generation: int, held: Collection[Snapshot] = ()) -> list[Action]:
        """Deletes the snapshots that no kept epoch needs. If one sweep runs and one waits, a later one does it.

        `held` are the (generation, checkpoint) of savepoints under way, which stay. One that can't be deleted keeps no
        other one: a savepoint that was claimed with it may be in a place that is away for good.
        """
        assert self.newest is not None
        if self._sweeps >= SWEEPS:
            return []
        self._sweeps += 1
        store, paths, needs = self._epoch_log.store, self._epoch_log.paths, self._needs
        of_kept = {parsed[0] for ref in self._retained if (parsed := paths.parse_checkpoint(ref.path))}
        self._retained = self._retained[-self._graph.checkpoints.retained :]
        kept = list(self._retained)
        # Only this generation makes files; an epoch that is kept no longer may be of an earlier one, or of the job that
        # this one was forked from.
        unswept = set(range(1, generation)) if self._unswept is None else self._unswept
        unswept |= {generation, *of_kept}
        self._unswept = set(unswept)

        def work() -> None:
            files = [path for number in sorted(unswept) for path in store.list(paths.generation(number))]
            problems: list[Exception] = []
            for directory in disposable(paths, files, kept, needs.of(kept).union(held), generation):
                try:
                    delete_claimed(store, [file for file in files if file.startswith(f"{directory}/")])
                    store.delete(directory)
                except Exception as error:
                    problems.append(error)
            if problems:
                raise problems[0]

        def done(_: None, error: BaseException | None, now_ms: float) -> list[Action]:
            self._sweeps -= 1
            if error is None and self._unswept is not None:
                self._unswept -= unswept  # after an error the next sweep looks there again
            return []

        return [self._off_loop("sweep", work, done)]

    def tidy(self, generation: int, now_ms: float) -> list[Action]:
        """Begins a round of housekeeping after a sweep."""
        assert self.newest is not None
        kept_from = min(ref.epoch for ref in self._retained)
        return self._housekeeping.after_commit(generation, self.newest.epoch, kept_from, now_ms)

    def discard(self, attempt: AttemptId, checkpoint: int) -> list[Action]:
        """Deletes the state files of an aborted checkpoint. The output that its sinks pre-committed stays."""
        return self.delete([self._epoch_log.paths.attempt(attempt, checkpoint)])

    def delete(self, paths: list[str]) -> list[Action]:
        """Deletes files. If many deletes wait for a slow store, or one fails, a later sweep deletes what is left."""
        if self._deletes >= DELETES:
            return []
        self._deletes += 1

        def work() -> None:
            for path in paths:
                self._epoch_log.store.delete(path)

        def done(result: Any, error: BaseException | None, now_ms: float) -> list[Action]:
            self._deletes -= 1
            return []

        return [self._off_loop("delete", work, done)]
