"""A year of a job in virtual time: everything that it keeps stays within the bounds of docs/retention.md.

Topology: a table with one small file per epoch, snapshots of two subtasks, and the epoch log of their job; one epoch an
hour, 8,760 of them, with the real publisher, committer, folder and log, on a store in memory. Beside them the history
and the logs of a job, in files and in objects.
Faults: the JobMaster is replaced every tenth day.
Checks: after each month the number of files, records and bytes, and the store calls of a commit, are those of the first
months, except one small record per JobMaster; at the end an audit finds every row, in its epoch. The figures are those
that docs/retention.md shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from engine.connectors.table.planning import FAN
from engine.core.paths import JobPaths
from engine.graph.job_graph import JobGraph
from engine.host.rotated import BEGIN, rotate_open
from engine.host.rotated_objects import RotatedObjects
from engine.jobmaster import events
from engine.jobmaster.actions import Action, Note, RunOffLoop
from engine.jobmaster.publisher import Committed, PublicationOutcome, Publisher
from engine.observe import history, logs, rescales, savepoints, timeline
from engine.observe.history import History
from engine.observe.logs import LogReader, LogWriter, slot_name
from engine.observe.savepoints import SavepointRecords
from engine.observe.timeline import Timeline
from engine.process.supervisor import LOG_BYTES, LOG_FILES
from engine.protocol.checkpoint import CompletedCheckpoint
from engine.protocol.config import CheckpointConfig
from engine.protocol.epoch_records import fence_after
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import SubtaskState, Timings
from engine.protocol.messages import Acknowledge
from engine.protocol.restart import NoRestart
from engine.snapshot.epoch_log import KEPT_RECORDS, EpochLog
from engine.spark.code import KEPT as KEPT_STARTS
from tests.connectors.test_table_folding import HOUR_MS, TABLE, Table, data_files, records
from tests.fakes import JOB_ID, MemoryStore

DAYS = 365
PATHS = JobPaths("job")
GRAPH = JobGraph("job", (), (), 128, CheckpointConfig(), NoRestart(), "plan")
STATE = b"s" * 1000
PAGE = Path(__file__).parents[1] / "docs" / "retention.md"


class Counting(MemoryStore):
    """Counts the calls, and the bytes that were read and created."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.moved = 0

    def read(self, path: str) -> bytes:
        self.calls += 1
        data = super().read(path)
        self.moved += len(data)
        return data

    def create(self, path: str, data: bytes):  # type: ignore[no-untyped-def]
        self.calls += 1
        self.moved += len(data)
        return super().create(path, data)


@dataclass(frozen=True)
class Month:
    visible: int
    files: int
    records: int
    record_bytes: int
    folds: int
    epoch_records: int
    snapshots: int
    manifest_bytes: int
    """The bytes of the newest manifest."""
    calls: int
    """The calls of the store in the slowest commit of the last day."""
    moved: int

    @property
    def shown(self) -> tuple[int, ...]:
        """Returns the columns of the table in docs/retention.md."""
        kilobytes = round(self.record_bytes / 1000)
        of_table = (self.visible, self.files, self.records, kilobytes, self.folds)
        return *of_table, self.epoch_records, self.snapshots, self.manifest_bytes, self.calls


class Year:
    """Does what a JobMaster does: publishes, commits, sweeps and tidies, one thing after the other."""

    def __init__(self) -> None:
        self.store = Counting()
        self.table = Table(self.store, fold_bytes=128_000_000)
        self.most = (0, 0)
        """The most calls and bytes of a commit in the day."""
        begun = msgspec.structs.replace(fence_after(None, "owner1"), job_id=JOB_ID)  # the rows are of this job
        EpochLog(self.store, PATHS).append(begun.sealed())
        self.claim()

    def restart(self) -> None:
        """Another JobMaster takes over. The one before has left a checkpoint that it did not publish."""
        self._write_state(AttemptId(self.table.generation, 1), self.table.epoch + 1)
        self.table.restart()
        self.claim()

    def claim(self) -> None:
        log = EpochLog(self.store, PATHS)
        committers = {"out": self.table.committer}
        wall_ms = lambda: int(self.table.now_ms)  # noqa: E731
        self.publisher = Publisher(GRAPH, log, committers, wall_ms, 50, False, RunOffLoop, self._told)
        self._carry_out([self.publisher.claim(f"owner{self.table.generation}", lambda *_: [])])
        self._carry_out([self.publisher.recommit(AttemptId(self.table.generation, 1), self._restored)])

    def _restored(self, manifest: object, error: BaseException | None, now_ms: float) -> list[Action]:
        assert error is None
        self.publisher.go_on_from(manifest)  # type: ignore[arg-type]
        return []

    def day(self) -> None:
        self.most = (0, 0)
        for _ in range(24):
            committables = self.table.committed_next()
            self.table.epoch += 1
            attempt, checkpoint = AttemptId(self.table.generation, 1), self.table.epoch
            states = self._write_state(attempt, checkpoint)
            acks = tuple(
                Acknowledge(attempt, checkpoint, state, committables if not number else [], {}, Timings())
                for number, state in enumerate(states)
            )
            self._carry_out(
                self.publisher.publish(CompletedCheckpoint(checkpoint, attempt, 0.0, 1.0, False, acks), 0.0)
            )
            assert self.publisher.newest is not None and self.publisher.newest.epoch == self.table.epoch
            self.table.now_ms += HOUR_MS

    def _write_state(self, attempt: AttemptId, checkpoint: int) -> list[SubtaskState]:
        subtasks = [SubtaskId("pv", 0), SubtaskId("pv", 1)]
        for subtask in subtasks:
            self.store.write(PATHS.state_file(attempt, checkpoint, "pv", subtask, "panes"), STATE)
        return [SubtaskState(subtask, [], {}) for subtask in subtasks]

    def _told(self, outcome: PublicationOutcome, now_ms: float) -> list[Action]:
        if not isinstance(outcome, Committed):
            return []
        generation = self.table.generation
        return [self.publisher.sweep(generation), *self.publisher.tidy(generation, self.table.now_ms)]

    def _carry_out(self, actions: Sequence[Action]) -> None:
        waiting = list(actions)
        while waiting:
            action = waiting.pop(0)
            if isinstance(action, Note):
                continue
            assert isinstance(action, RunOffLoop)
            calls, moved = self.store.calls, self.store.moved
            result = action.work()
            if action.name == "commit":
                self.most = max(self.most, (self.store.calls - calls, self.store.moved - moved))
            waiting += action.done(result, None, self.table.now_ms)

    def month(self) -> Month:
        found = records(self.store)
        checkpoints = {PATHS.parse_checkpoint(path) for path in self.store.files}
        assert self.publisher.newest is not None
        return Month(
            len(self.table.spark_files()),
            len(data_files(self.store)),
            len(found),
            sum(len(self.store.files[path]) for path in found),
            len(self.store.list(f"{TABLE}/_folds")),
            len(self.store.list("job/log")),
            len(checkpoints - {None}),
            len(self.store.files[self.publisher.newest.path]),
            *self.most,
        )


@pytest.mark.promise("C4")
def test_what_a_job_keeps_is_bounded_for_a_year() -> None:
    year, months = Year(), []
    for day in range(1, DAYS + 1):
        year.day()
        if day % 10 == 0:
            year.restart()
        if day % 30 == 5:
            months.append(year.month())
    year.table.check()
    print(*months, sep="\n")
    settled, last = months[3], months[-1]
    jobmasters = year.table.generation
    assert all(month.visible <= FAN * 4 and month.files <= month.visible + 80 for month in months)
    assert last.records <= settled.records + 20 and last.folds <= settled.folds + 40
    assert last.record_bytes <= 2 * settled.record_bytes
    assert last.epoch_records <= KEPT_RECORDS + 100 + jobmasters
    assert last.calls <= settled.calls + 10 and last.moved <= 2 * settled.moved
    assert all(month.snapshots == GRAPH.checkpoints.retained for month in months)
    assert last.manifest_bytes <= months[0].manifest_bytes + 20, "only its numbers have more digits"
    assert shown_months() == {number: months[number - 1].shown for number in (1, 4, 7, 10, 13)}


def shown_months() -> dict[int, tuple[int, ...]]:
    """Returns the rows of the table of months in docs/retention.md."""
    head, rows = PAGE.read_text().split("| after 30-day month |")[1].split("\n\n")[0].splitlines(), {}
    for row in head[2:]:
        month, *figures = (int(cell.replace(",", "")) for cell in row.strip("| ").split(" | "))
        rows[month] = tuple(figures)
    return rows
