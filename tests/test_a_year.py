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
        self.publisher = Publisher(GRAPH, log, committers, wall_ms, 50, lambda epoch: False, RunOffLoop, self._told)
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
        return [*self.publisher.sweep(generation), *self.publisher.tidy(generation, self.table.now_ms)]

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


# --- histories and logs ---

OPERATOR = events.OperatorFigures(1.5, 20.5, 1_000_000)


def half_hour(number: int) -> list[events.AnyEvent]:
    """Returns what a JobMaster notes in half an hour: a checkpoint of eight subtasks; every other time a savepoint."""
    at_ms, attempt = number * 1_800_000, "3.1"
    subtasks = [
        events.SubtaskFigures(vertex, subtask, 1.5, 2.5, 3.5, 20.5, 1_000_000, {"views": OPERATOR, "pv": OPERATOR})
        for vertex in ("views", "pv")
        for subtask in range(4)
    ]
    ledger = {"sent:views->pv": 1_000 * number, "received:views->pv": 1_000 * number}
    figures = (900.0, 8_000_000, 1.5, 2.5, 3.5, 20.5, False, ledger, subtasks)
    noted: list[events.AnyEvent] = [
        events.Triggered(number, attempt, at_ms=at_ms),
        events.Published(number, number, at_ms=at_ms),
        events.Completed(number, number, attempt, at_ms, *figures, at_ms=at_ms),
    ]
    if number % 2:
        name = f"{number:06d}"
        place = f"/data/weir/pageviews/savepoints/{name}"
        noted += [
            events.SavepointTriggered(name, place, number, "no", at_ms=at_ms),
            events.SavepointTaken(name, place, number, 8_000_000, at_ms=at_ms),
            events.SavepointCompleted(name, place, number, number, 8_000_000, 900.0, at_ms=at_ms),
        ]
    return noted


def year_of_events() -> Iterator[list[events.AnyEvent]]:
    return (half_hour(number) for number in range(DAYS * 48))


def sizes(*files: Path) -> list[int]:
    return [file.stat().st_size for file in files]


@pytest.mark.promise("C4", "F3")
def test_the_history_of_a_job_is_bounded_for_a_year_and_keeps_the_newest(tmp_path: Path) -> None:
    written = History(tmp_path, "job")
    for noted in year_of_events():
        for event in noted:
            written.append(event)
    folder = tmp_path / "job" / "history"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["events.jsonl", "events.jsonl.1", "savepoints.jsonl", "savepoints.jsonl.1"]
    slack = 4_000  # a file is full once its last line is over the bound
    for name, bound in (("events", history.FILE_BYTES), ("savepoints", history.SAVEPOINTS_BYTES)):
        new, old = sizes(folder / f"{name}.jsonl", folder / f"{name}.jsonl.1")
        assert bound <= old <= bound + slack and 0 < new <= bound + slack
    kept = Timeline(written.events())
    last = DAYS * 48 - 1
    assert [one.checkpoint for one in kept.checkpoints] == list(range(last, last - timeline.CHECKPOINTS, -1))
    assert len(kept.events) == timeline.EVENTS
    asked = SavepointRecords(written.savepoints()).newest_first
    assert len(asked) == savepoints.SAVEPOINTS and asked[0].savepoint == f"{last:06d}"


@pytest.mark.promise("C4", "F3")
def test_the_history_of_a_job_in_a_bucket_is_bounded_for_a_year() -> None:
    store = MemoryStore()

    def opened(name: str, objects: int) -> RotatedObjects:
        return RotatedObjects(store, PATHS.history(name), history.OBJECT_BYTES, objects)

    lines = {"events": opened("events", history.OBJECTS), "savepoints": opened("savepoints", history.SAVEPOINT_OBJECTS)}
    for number, noted in enumerate(year_of_events()):
        for event in noted:
            for name in ("events", "savepoints") if "savepoint" in msgspec.to_builtins(event)["kind"] else ("events",):
                lines[name].append(msgspec.json.encode(event))
        if number % 48 == 0:
            for one in lines.values():
                one.flush()
        if number % 480 == 0:  # another JobMaster goes on in an object of its own
            lines = {"events": opened("events", history.OBJECTS), "savepoints": lines["savepoints"]}
    kept = {name: store.list(PATHS.history(name)) for name in lines}
    assert (len(kept["events"]), len(kept["savepoints"])) == (history.OBJECTS, history.SAVEPOINT_OBJECTS)
    a_day = 130_000  # an object is written once a day here; once a second in a job
    assert all(len(store.files[path]) <= history.OBJECT_BYTES + a_day for paths in kept.values() for path in paths)
    assert len(list(lines["events"].after(BEGIN))) > timeline.CHECKPOINTS


@pytest.mark.promise("C4")
def test_the_logs_of_a_job_are_bounded_for_a_year(tmp_path: Path) -> None:
    """A line of 400 bytes every five minutes in the log of a slot, and 200 KB a day that the JobMaster prints."""
    log, printed = LogWriter(tmp_path / "logs", slot_name(0)), tmp_path / "master.log"
    for day in range(DAYS):
        log.write("\n".join(f"{day:03d} {'x' * 396}" for _ in range(288)))
        with printed.open("ab") as file:
            file.write(f"{day:03d}{'y' * 200_000}\n".encode())
        rotate_open(printed, LOG_BYTES, LOG_FILES)
    of_slot, of_master = (sorted(folder.glob("*.log*")) for folder in (tmp_path / "logs", tmp_path))
    assert (len(of_slot), len(of_master)) == (logs.FILES, LOG_FILES)
    assert all(size <= logs.FILE_BYTES + 1_000 for size in sizes(*of_slot))
    assert all(size <= LOG_BYTES + 200_100 for size in sizes(*of_master))
    newest = list(LogReader(tmp_path / "logs").read())[-1]
    assert newest.text.startswith(f"{DAYS - 1} ")


# --- the page ---


def test_the_page_says_the_bounds_that_the_code_has() -> None:
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|", PAGE.read_text(), re.MULTILINE))
    bounds = {what: bound for what, bound in rows.items() if bound != "bound"}
    assert f"({GRAPH.checkpoints.retained})" in bounds["snapshots (`gen-…/chk-…/`) with their manifests and ledgers"]
    assert f"the newest {KEPT_RECORDS:,};" in bounds["records of the epoch log (`log/`)"]
    mebibytes = history.FILE_BYTES >> 20
    objects = history.OBJECTS * history.OBJECT_BYTES >> 20
    of_history = bounds["history (`history/events.jsonl`)"]
    assert of_history == f"{mebibytes} to {history.FILES * mebibytes} MiB; in a bucket {objects} MiB"
    of_savepoints = bounds["history of savepoints and stops (`history/savepoints.jsonl`)"]
    mebibytes, objects = history.SAVEPOINTS_BYTES >> 20, history.SAVEPOINT_OBJECTS * history.OBJECT_BYTES >> 20
    assert of_savepoints == f"{mebibytes} to {history.FILES * mebibytes} MiB; in a bucket {objects} MiB"
    shown = bounds["what `weir` and the pages show of it"]
    assert f"{timeline.CHECKPOINTS} checkpoints, {timeline.RESTARTS} restarts" in shown
    assert f"{rescales.RESCALES} rescales, {savepoints.SAVEPOINTS} savepoints" in shown
    assert (logs.FILES, logs.FILE_BYTES) == (LOG_FILES, LOG_BYTES)
    assert bounds["logs (`run/logs/`, `run/master.log`)"] == f"{logs.FILES} × {logs.FILE_BYTES >> 20} MiB each"
    assert f"the newest {KEPT_STARTS} starts" in bounds["code of starts (`run/code/`)"]
