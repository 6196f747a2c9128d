"""A completed checkpoint becomes an epoch, and the JobMaster hears what the publication comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.core.errors import Fenced, StoreError, TargetTaken
from engine.core.paths import JobPaths
from engine.core.sinks import Committer, Found, Tidied
from engine.graph.description import describe
from engine.graph.job_graph import JobGraph
from engine.jobmaster.actions import Action, Note, RunOffLoop
from engine.jobmaster.events import PublishUnknown
from engine.jobmaster.publisher import (
    DELETES,
    CommitFailed,
    Committed,
    NotPublished,
    PublicationOutcome,
    Published,
    Publisher,
    Replaced,
)
from engine.protocol.checkpoint import CommitPermit, CompletedCheckpoint
from engine.protocol.config import CheckpointConfig
from engine.protocol.epoch_records import LogRecord
from engine.protocol.failures import CheckpointFailure
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.job_description import JobDescription
from engine.protocol.manifest import Committable, Manifest, ManifestRef, StateFile, SubtaskState, Timings
from engine.protocol.messages import Acknowledge
from engine.protocol.restart import NoRestart
from engine.snapshot import beginning
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore

ATTEMPT = AttemptId(1, 1)
GRAPH = JobGraph("job", (), (), 128, CheckpointConfig(retained=2), NoRestart(), "plan")


class Recording(Committer):
    def __init__(self) -> None:
        self.committed: list[tuple[int, list[int]]] = []
        self.rewound: list[tuple[int, int]] = []
        self.aborted: list[int | None] = []
        self.claimed: list[str] = []
        self.error: Exception | None = None
        self.refusal: Exception | None = None
        self.lost: Exception | None = None
        self.checked: list[list[int]] = []
        self.looked: list[int] = []

    def check(self, committables: Sequence[Committable]) -> None:
        self.checked.append([c.sequence for c in committables])
        if self.lost is not None:
            raise self.lost

    def look(self, job_id: str, epoch: int) -> Found:
        self.looked.append(epoch)
        return super().look(job_id, epoch)

    def claim(self, job_id: str, next_epoch: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.claimed.append(job_id)

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        if self.error is not None:
            raise self.error
        self.committed.append((permit.epoch, [c.sequence for c in committables]))

    def rewind(self, permit: CommitPermit, to_epoch: int) -> None:
        self.rewound.append((permit.epoch, to_epoch))

    def pass_over(self, permit: CommitPermit) -> None: ...

    def abort_unknown(self, permit: CommitPermit | None, attempt: AttemptId) -> None:
        self.aborted.append(permit.epoch if permit else None)


class Desk:
    """A publisher that has claimed its log, its outcomes, and the I/O it has asked for, run when the test says so."""

    def __init__(self, folder: Any, committer: Recording | None = None, graph: JobGraph = GRAPH) -> None:
        self.log = EpochLog(DirectoryStore(folder), JobPaths("job"))
        self.committer = committer or Recording()
        self.outcomes: list[PublicationOutcome] = []
        self.notes: list[Any] = []
        self.asked: list[RunOffLoop] = []
        self.publisher = Publisher(
            graph,
            self.log,
            {"out": self.committer},
            lambda: 5,
            50,
            lambda epoch: False,
            RunOffLoop,
            lambda outcome, now_ms: self._tell(outcome),
        )
        self.do([self.publisher.claim("me", lambda claimed, error, now_ms: [])])
        self.run()

    def _tell(self, outcome: PublicationOutcome) -> list[Action]:
        self.outcomes.append(outcome)
        return []

    def do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Note):
                self.notes.append(action.event)
            else:
                assert isinstance(action, RunOffLoop)
                self.asked.append(action)

    def step(self, now_ms: float = 0.0) -> str:
        """Carries out what was asked for first, and returns its name."""
        action = self.asked.pop(0)
        result, error = None, None
        try:
            result = action.work()
        except Exception as raised:
            error = raised
        self.do(action.done(result, error, now_ms))
        return action.name

    def run(self) -> list[str]:
        names = []
        while self.asked:
            names.append(self.step())
        return names

    def publish(self, completed: CompletedCheckpoint) -> None:
        self.do(self.publisher.publish(completed, 0.0))


def completed(
    checkpoint: int, *sequences: int, sent: int = 3, received: int = 3, attempt: AttemptId = ATTEMPT
) -> CompletedCheckpoint:
    born = [Committable("out", 0, attempt, checkpoint, sequence, {}) for sequence in sequences]
    counted = {"sent:a->b": sent, "received:a->b": received}
    ack = Acknowledge(attempt, checkpoint, SubtaskState(SubtaskId("a", 0), [], {}), born, counted, Timings())
    return CompletedCheckpoint(checkpoint, attempt, 0.0, 1.0, False, (ack,))


@pytest.fixture
def desk(tmp_path: Any) -> Desk:
    return Desk(tmp_path)


@pytest.mark.promise("D11")
def test_the_manifest_is_written_then_the_epoch_record_then_the_sinks_commit(desk: Desk) -> None:
    desk.publish(completed(1, 7))
    assert desk.publisher.busy
    assert desk.run() == ["manifest", "publish", "commit"]
    assert [type(outcome) for outcome in desk.outcomes] == [Published, Committed]
    assert desk.committer.committed == [(1, [7])]
    assert not desk.publisher.busy and desk.publisher.newest is not None and desk.publisher.newest.epoch == 1
    assert desk.publisher.ledger == {"sent:a->b": 3, "received:a->b": 3}


def test_nothing_is_committed_before_the_epoch_record_exists(desk: Desk) -> None:
    desk.publish(completed(1, 7))
    while desk.step() != "publish":
        assert desk.publisher.newest is None
    last = desk.log.last()
    assert last is not None and last.newest is not None and desk.committer.committed == []


@pytest.mark.promise("D4")
def test_epochs_are_published_one_at_a_time_in_their_order(desk: Desk) -> None:
    desk.publish(completed(1, 1))
    desk.publish(completed(2, 2))
    assert desk.run() == ["manifest", "publish", "commit"], "the second waits"
    desk.do(desk.publisher.publish_next(0.0))
    desk.run()
    assert [epoch for epoch, _ in desk.committer.committed] == [1, 2]


def test_what_waits_can_be_dropped_and_what_is_under_way_can_not(desk: Desk) -> None:
    desk.publish(completed(1))
    desk.publish(completed(2))
    assert [c.checkpoint for c in desk.publisher.drop_waiting()] == [2]
    desk.run()
    assert [epoch for epoch, _ in desk.committer.committed] == [1]


def test_what_was_dropped_is_not_published_later(desk: Desk) -> None:
    desk.publish(completed(1))
    desk.publish(completed(2))
    desk.publisher.drop_waiting()
    desk.run()
    assert desk.publisher.publish_next(0.0) == [] and desk.publisher.drop_waiting() == []


@pytest.mark.promise("D11")
def test_what_an_epoch_has_published_is_not_published_again_while_sinks_still_hold_it(desk: Desk) -> None:
    desk.publish(completed(1, 1))
    desk.run()
    held = Committable("out", 0, ATTEMPT, 1, 1, {})
    later = completed(2, 2)
    ack = later.acks[0]
    both = Acknowledge(ATTEMPT, 2, ack.state, [held, *ack.committables], ack.ledger, ack.timings)
    desk.publish(CompletedCheckpoint(2, ATTEMPT, 0.0, 1.0, False, (both,)))
    desk.run()
    assert desk.committer.committed == [(1, [1]), (2, [2])]


@pytest.mark.promise("H1")
def test_a_checkpoint_whose_ledger_does_not_balance_is_not_published(desk: Desk) -> None:
    desk.publish(completed(1, sent=3, received=2))
    (outcome,) = desk.outcomes
    assert isinstance(outcome, NotPublished) and outcome.failure is CheckpointFailure.LEDGER_MISMATCH
    assert "edge a->b: 3 rows sent, 2 received" in outcome.detail and not desk.publisher.busy and not desk.asked


def test_a_manifest_that_can_t_be_written_ends_the_publication_and_the_next_one_is_the_same_epoch(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(EpochLog, "write_manifest", _raising(StoreError("disk full")))
        desk.publish(completed(1, 1))
        desk.run()
    (outcome,) = desk.outcomes
    assert isinstance(outcome, NotPublished) and outcome.failure is CheckpointFailure.FINALIZE_FAILED
    assert not desk.publisher.busy and desk.committer.committed == []
    desk.publish(completed(2, 2))
    desk.run()
    assert desk.committer.committed == [(1, [2])]


@pytest.mark.promise("D11", "H8")
def test_an_epoch_whose_output_is_gone_is_not_published(desk: Desk) -> None:
    desk.committer.lost = StoreError("out/1.parquet is gone")
    desk.publish(completed(1, 1))
    assert desk.run() == ["manifest"]
    (outcome,) = desk.outcomes
    assert isinstance(outcome, NotPublished) and outcome.detail == "out/1.parquet is gone"
    assert not desk.publisher.busy and desk.committer.committed == [] and desk.publisher.newest is None
    assert desk.committer.checked == [[1]]


@pytest.mark.promise("D11", "H8")
@pytest.mark.parametrize("left", [None, b"1234"], ids=["gone", "torn"])
def test_an_epoch_whose_state_is_gone_is_not_published(desk: Desk, left: bytes | None) -> None:
    """A bug: its slot wrote it into an empty folder that was in the place of the store for a moment."""
    done = completed(1, 1)
    (ack,) = done.acks
    file = StateFile("sum", "state", "job/gen-0001/chk-0000001/1/sum.0.state.arrow", 5, "00", 1)
    done = replace(done, acks=(msgspec.structs.replace(ack, state=SubtaskState(SubtaskId("a", 0), [file], {})),))
    if left is not None:
        desk.log.store.write(file.path, left)
    desk.publish(done)
    assert desk.run() == ["manifest"]
    (outcome,) = desk.outcomes
    assert isinstance(outcome, NotPublished) and file.path in outcome.detail
    desk.log.store.write(file.path, b"12345")
    desk.publish(done)
    assert desk.run() == ["manifest", "publish", "commit"]


@pytest.mark.promise("D11", "H8")
def test_a_commit_while_the_store_is_away_has_failed(desk: Desk, tmp_path: Path) -> None:
    """A bug: it went to an empty folder, and the rows of the epoch were never seen."""
    desk.publish(completed(1, 1))
    desk.step()
    desk.step()
    away = tmp_path.rename(tmp_path.with_name("away"))
    tmp_path.mkdir()
    assert desk.step() == "commit"
    tmp_path.rmdir()
    away.rename(tmp_path)
    failed = desk.outcomes[-1]
    assert isinstance(failed, CommitFailed) and "is the store mounted at" in str(failed.error)


def test_an_unknown_outcome_is_asked_again_until_the_answer_is_definite(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Callable[..., Any]] = [_returning(None), _raising(StoreError("away")), _returning(None)]
    real, tried = EpochLog.publish, []

    def publish(self: EpochLog, last: LogRecord, ref: ManifestRef) -> LogRecord | None:
        tried.append((last, ref))
        answer = answers.pop(0) if answers else real
        return answer(self, last, ref)  # type: ignore[no-any-return]

    monkeypatch.setattr(EpochLog, "publish", publish)
    desk.publish(completed(1, 1))
    desk.run()
    for now_ms in (50.0, 100.0, 150.0):
        assert desk.outcomes == [] and desk.publisher.busy, "only the log knows"
        assert desk.publisher.wakeup_ms == 50.0 or now_ms > 50.0
        assert desk.publisher.on_tick(-1.0) == []
        desk.do(desk.publisher.on_tick(1e9))
        desk.run()
    assert [type(outcome) for outcome in desk.outcomes] == [Published, Committed]
    assert len(tried) == 4 and len({str(one) for one in tried}) == 1, "the same record each time"
    assert [type(note) for note in desk.notes] == [PublishUnknown] * 3


@pytest.mark.promise("F2")
def test_who_finds_another_s_record_in_its_place_is_replaced_and_commits_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EpochLog, "publish", _raising(Fenced("log record 2 belongs to another JobMaster")))
    desk.publish(completed(1, 1))
    desk.run()
    assert desk.outcomes == [Replaced("log record 2 belongs to another JobMaster")] and desk.committer.committed == []


@pytest.mark.promise("D11")
def test_an_epoch_that_a_sink_could_not_commit_is_committed_by_restoring(desk: Desk) -> None:
    desk.committer.error = OSError("the target is away")
    desk.publish(completed(1, 7))
    desk.run()
    assert isinstance(desk.outcomes[-1], CommitFailed) and not desk.publisher.busy
    desk.committer.error = None
    restored: list[Manifest | None] = []
    desk.do([desk.publisher.recommit(AttemptId(1, 2), lambda manifest, error, now_ms: restored.append(manifest) or [])])
    desk.run()
    assert desk.committer.committed == [(1, [7])] and desk.committer.aborted == [1]
    assert restored[0] is not None and restored[0].epoch == 1


@pytest.mark.promise("D8")
def test_targets_are_looked_at_once_although_each_restore_claims_them(desk: Desk) -> None:
    """Only this JobMaster writes there from then on. A look reads the log of a table: a restart would wait for it."""
    for attempt in (1, 2, 3):
        desk.do([desk.publisher.recommit(AttemptId(1, attempt), lambda manifest, error, now_ms: [])])
        desk.run()
    assert len(desk.committer.claimed) == 3 and desk.committer.looked == [0]


@pytest.mark.promise("D8")
def test_the_table_of_a_gone_sink_is_claimed_committed_and_cleaned_like_all_others(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Recording()
    monkeypatch.setattr(desk.publisher, "_gone", lambda manifest: {"gone": gone})
    desk.publish(completed(1, 7))
    desk.run()
    desk.do([desk.publisher.recommit(AttemptId(1, 2), lambda manifest, error, now_ms: [])])
    desk.run()
    assert gone.claimed == [desk.publisher.job_id] and gone.committed == [(1, [])] and gone.aborted == [1]


def test_nothing_is_restored_while_the_outcome_of_a_publication_is_open(desk: Desk) -> None:
    desk.publish(completed(1))
    with pytest.raises(AssertionError, match="publication is open"):
        desk.publisher.recommit(AttemptId(1, 2), lambda manifest, error, now_ms: [])


@pytest.mark.promise("G1")
def test_targets_are_claimed_for_the_job_s_own_id_before_anything_is_committed(tmp_path: Any) -> None:
    Desk(tmp_path).publish(completed(1, 7))
    record = Desk(tmp_path).log.last()
    successor = Desk(tmp_path)
    assert record is not None and successor.publisher.job_id == record.job_id, "a later JobMaster has the same id"
    successor.committer.refusal = TargetTaken("belongs to another")
    errors: list[BaseException | None] = []
    successor.do([successor.publisher.recommit(AttemptId(2, 1), lambda m, error, now_ms: errors.append(error) or [])])
    successor.run()
    assert isinstance(errors[0], TargetTaken)
    assert successor.committer.committed == [] and successor.committer.aborted == []
    successor.committer.refusal = None
    successor.do([successor.publisher.recommit(AttemptId(2, 2), lambda m, error, now_ms: [])])
    successor.run()
    assert successor.committer.claimed == [record.job_id]


@pytest.mark.promise("H1")
def test_totals_go_on_from_the_epoch_that_was_restored(desk: Desk, tmp_path: Any) -> None:
    desk.publish(completed(1))
    desk.run()
    successor = Desk(tmp_path)
    restored: list[Manifest] = []
    successor.do([successor.publisher.recommit(AttemptId(2, 1), lambda m, error, now_ms: restored.append(m) or [])])
    successor.run()
    successor.publisher.go_on_from(restored[0])
    successor.publish(completed(2))
    successor.run()
    assert successor.publisher.ledger == {"sent:a->b": 6, "received:a->b": 6}


def test_totals_begin_at_zero_without_an_epoch_to_go_on_from(desk: Desk) -> None:
    desk.publish(completed(1))
    desk.run()
    desk.publisher.go_on_from(None)
    assert desk.publisher.ledger == {}


def test_a_sink_commits_only_its_own_output(tmp_path: Any) -> None:
    desk = Desk(tmp_path)
    ack = completed(1, 7).acks[0]
    others = Committable("other", 0, ATTEMPT, 1, 8, {})
    both = Acknowledge(ATTEMPT, 1, ack.state, [*ack.committables, others], ack.ledger, ack.timings)
    desk.publish(CompletedCheckpoint(1, ATTEMPT, 0.0, 1.0, False, (both,)))
    desk.run()
    assert desk.committer.committed == [(1, [7])]


def test_output_is_published_once_however_many_epochs_its_sink_holds_it(desk: Desk) -> None:
    held = Committable("out", 0, ATTEMPT, 1, 1, {})
    for checkpoint in (1, 2, 3):
        ack = completed(checkpoint).acks[0]
        again = Acknowledge(ATTEMPT, checkpoint, ack.state, [held], ack.ledger, ack.timings)
        desk.publish(CompletedCheckpoint(checkpoint, ATTEMPT, 0.0, 1.0, False, (again,)))
        desk.run()
    assert desk.committer.committed == [(1, [1]), (2, []), (3, [])]


def test_a_rewound_epoch_is_hidden_by_the_sinks_and_nothing_is_committed(desk: Desk) -> None:
    _restore_from(desk, epoch=5, rewound_to=2)
    assert desk.committer.rewound == [(5, 2)] and desk.committer.committed == []


def test_a_fork_commits_nothing_of_the_job_it_came_from(desk: Desk) -> None:
    _restore_from(desk, epoch=0)
    assert desk.committer.rewound == [] and desk.committer.committed == []


def _published(desk: Desk, *checkpoints: int, generation: int = 1) -> None:
    for checkpoint in checkpoints:
        desk.publish(completed(checkpoint, attempt=AttemptId(generation, 1)))
        desk.run()
        desk.do(desk.publisher.sweep(generation))
        desk.run()


def _kept(desk: Desk) -> list[str]:
    return sorted(
        {path.split("/chk-")[0] + path.split("/chk-")[1][:7] for path in desk.log.store.list("job") if "chk-" in path}
    )


@pytest.mark.promise("C4")
def test_an_epoch_of_an_earlier_generation_is_deleted_when_it_is_no_longer_kept(desk: Desk, tmp_path: Any) -> None:
    _published(desk, 1, 2)
    successor = Desk(tmp_path)
    _published(successor, 3, 4, 5, generation=2)
    assert _kept(successor) == ["job/gen-00020000004", "job/gen-00020000005"]


@pytest.mark.promise("C4")
def test_what_a_sweep_could_not_delete_the_next_one_deletes(
    desk: Desk, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _published(desk, 1, 2)
    successor = Desk(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(DirectoryStore, "delete", _raising(StoreError("away")))
        _published(successor, 3, 4, 5, generation=2)
    _published(successor, 6, generation=2)
    assert _kept(successor) == ["job/gen-00020000005", "job/gen-00020000006"]


@pytest.mark.promise("C4", "D9")
@pytest.mark.parametrize("claim", [b'{"place": "s3://bucket/s", "checksum": ""}', b"damaged"])
def test_a_claimed_savepoint_whose_place_is_away_keeps_no_other_snapshot_from_being_deleted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, claim: bytes
) -> None:
    monkeypatch.setattr(beginning, "open_place", _raising(StoreError("no connection to the server")))
    _published(desk, 1)
    desk.log.store.write(desk.log.paths.copy(1, 1, "me") + "/claimed.json", claim)
    _published(desk, 2, 3, 4, 5)
    assert _kept(desk) == ["job/gen-00010000001", "job/gen-00010000004", "job/gen-00010000005"]


@pytest.mark.promise("C4")
def test_a_sweep_keeps_as_many_epochs_as_the_job_wants_and_no_more(desk: Desk) -> None:
    _published(desk, 1, 2, 3)
    assert _kept(desk) == ["job/gen-00010000002", "job/gen-00010000003"]


@pytest.mark.promise("C4")
def test_a_new_jobmaster_sweeps_what_its_predecessors_left_and_keeps_the_epoch_it_began_with(
    desk: Desk, tmp_path: Any
) -> None:
    _published(desk, 1, 2)
    desk.log.store.write(desk.log.paths.attempt(ATTEMPT, 3) + "/left", b"by a checkpoint under way")
    successor = Desk(tmp_path)
    _published(successor, 4, generation=2)
    assert _kept(successor) == ["job/gen-00010000002", "job/gen-00020000004"]


@pytest.mark.promise("D3")
def test_a_takeover_keeps_as_many_epochs_as_are_retained(tmp_path: Any) -> None:
    three = replace(GRAPH, checkpoints=CheckpointConfig(retained=3))
    _published(Desk(tmp_path, graph=three), 1, 2, 3)
    successor = Desk(tmp_path, graph=three)
    _published(successor, 4, generation=2)
    assert _kept(successor) == ["job/gen-00010000002", "job/gen-00010000003", "job/gen-00020000004"]


@pytest.mark.promise("C4", "D3")
def test_tables_keep_what_the_oldest_kept_epoch_needs(tmp_path: Any) -> None:
    rounds: list[tuple[int, int, int]] = []

    class Tidying(Recording):
        def tidy(self, generation: int, epoch: int, kept_from: int, now_ms: float) -> Tidied:
            rounds.append((generation, epoch, kept_from))
            return Tidied()

    desk = Desk(tmp_path, Tidying())
    _published(desk, 1, 2, 3)
    desk.do(desk.publisher.tidy(1, 0.0))
    desk.run()
    assert rounds == [(1, 3, 2)], "epoch 3 is committed, and the job may go back to epoch 2"


@pytest.mark.promise("D3")
def test_an_epoch_whose_commit_failed_counts_among_the_kept_ones(desk: Desk) -> None:
    _published(desk, 1)
    desk.committer.error = StoreError("away")
    desk.publish(completed(2))
    desk.run()
    desk.committer.error = None
    _published(desk, 3)
    assert _kept(desk) == ["job/gen-00010000002", "job/gen-00010000003"]


def _restore_from(desk: Desk, epoch: int, rewound_to: int | None = None) -> None:
    """Restores an epoch whose manifest still names output."""
    output = [Committable("out", 0, ATTEMPT, 1, 1, {})]
    description = describe(GRAPH, JobDescription(), 1)
    manifest = Manifest("job", epoch, 1, ATTEMPT, 0, 128, [], output, output, {}, description, rewound_to=rewound_to)
    desk.publisher.newest = desk.log.write_manifest(manifest)
    desk.do([desk.publisher.recommit(AttemptId(1, 2), lambda manifest, error, now_ms: [])])
    desk.run()


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def _raising(error: Exception) -> Callable[..., Any]:
    def work(*_: Any) -> Any:
        raise error

    return work


@pytest.mark.promise("C4")
def test_on_a_slow_store_one_sweep_runs_and_one_waits_and_the_last_one_deletes_all(desk: Desk) -> None:
    asked: list[Action] = []
    for checkpoint in range(1, 8):
        desk.publish(completed(checkpoint))
        desk.run()
        asked += desk.publisher.sweep(1)
    assert len(asked) == 2
    desk.do(asked)
    desk.run()
    desk.do(desk.publisher.sweep(1))
    desk.run()
    assert _kept(desk) == ["job/gen-00010000006", "job/gen-00010000007"]


def test_deletes_of_aborted_checkpoints_do_not_pile_up(desk: Desk) -> None:
    asked = [action for checkpoint in range(100) for action in desk.publisher.discard(ATTEMPT, checkpoint)]
    assert len(asked) == DELETES
    desk.do(asked)
    desk.run()
    assert len(desk.publisher.discard(ATTEMPT, 1)) == 1


@pytest.mark.promise("C4")
def test_a_sweep_keeps_the_snapshot_of_which_a_kept_epoch_uses_a_file(desk: Desk) -> None:
    """As `weir gc` does."""
    paths = desk.log.paths
    shared = paths.state_file(ATTEMPT, 1, "sum", SubtaskId("a", 0), "state")
    _published(desk, 1)
    desk.log.store.write(shared, b"state")
    for checkpoint in (2, 3, 4):
        ack = completed(checkpoint).acks[0]
        file = StateFile("sum", "state", shared, 5, "00", 1)
        state = msgspec.structs.replace(ack.state, files=[file])
        again = Acknowledge(ATTEMPT, checkpoint, state, [], ack.ledger, ack.timings)
        desk.publish(CompletedCheckpoint(checkpoint, ATTEMPT, 0.0, 1.0, False, (again,)))
        desk.run()
        desk.do(desk.publisher.sweep(1))
        desk.run()
    assert _kept(desk) == ["job/gen-00010000001", "job/gen-00010000003", "job/gen-00010000004"]


@pytest.mark.promise("D4")
def test_an_aborted_checkpoint_leaves_no_state_files(desk: Desk) -> None:
    paths = desk.log.paths
    for checkpoint in (1, 2):
        desk.log.store.write(paths.state_file(ATTEMPT, checkpoint, "sum", SubtaskId("a", 0), "state"), b"state")
    desk.do(desk.publisher.discard(ATTEMPT, 1))
    desk.run()
    assert desk.log.store.list(paths.attempt(ATTEMPT, 1)) == []
    assert len(desk.log.store.list(paths.attempt(ATTEMPT, 2))) == 1
