"""A job that publishes epochs into a table in a real folder, with the real writers, committer, folder, log and history.

It runs in this process, one epoch after the other, and can be stopped, rewound and tampered with in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from checks.facts import Fact
from checks.live.audit import _remember, look
from engine.connectors.table import TableSink
from engine.core.columns import stored_columns
from engine.core.paths import JobPaths
from engine.core.sinks import Committer, WriterContext
from engine.observe.history import History
from engine.protocol import ledger
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.job_description import JobDescription, SinkDescription
from engine.protocol.manifest import Committable, Manifest
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.rewind import go_back
from engine.state.digests import digest, digested
from engine.store.directory import DirectoryStore
from tests.seen import completed

JOB = "live"
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("lat", pa.float64()), ("lon", pa.float64())])),
    ]
)
ROWS = 8
RETAINED = 3
MINUTES_MS = 60_000.0


class LiveJob:
    """`path`: the path of the table, as its sink gives it."""

    def __init__(self, folder: Path, path: str = "pv", *, fold: bool = True, uid: str = "out") -> None:
        self.folder = folder
        self.store = DirectoryStore(folder)
        self.paths = JobPaths(JOB)
        self.epoch = 0
        self.schema = SCHEMA
        self.now_ms = 0.0
        self.rows = 0
        self.totals: dict[str, int] = {}
        self.first_epochs: dict[str, int] = {}
        self.use(path, fold=fold, uid=uid)
        self.restart()

    def use(self, path: str, *, fold: bool = True, uid: str = "out") -> None:
        """From now on the job writes this table, by this sink."""
        self.sink = TableSink(path, fold_mb=1 if fold else None, keep_replaced="1 h")
        self.path, self.uid = path, uid
        self.table = Path(path) if path.startswith("/") else self.folder / self.paths.table(path)
        first = self.first_epochs.setdefault(uid, self.epoch + 1)
        self.description = SinkDescription(uid, "TableSink", path, path, stored_columns(self.schema), first)

    def restart(self) -> None:
        """A new JobMaster takes the job over."""
        self.log = EpochLog(self.store, self.paths)
        claimed = self.log.claim(f"master {self.epoch} {self.now_ms}")
        assert claimed is not None
        self.record = claimed.record
        self.attempt = AttemptId(claimed.record.generation, 1)
        self.committer = self.sink.committer(self.store, self.paths)
        self.committer.claim(self.record.job_id, self.epoch + 1)
        self.committer.begin(self.epoch + 1)
        store, _ = self.sink.place(self.store, self.paths)
        job_id = self.record.job_id
        self.writers = [
            self.sink.writer(WriterContext(n, self.attempt, store, self.paths, self.schema, job_id)) for n in (0, 1)
        ]

    def add_column(self, name: str) -> None:
        self.schema = self.schema.append(pa.field(name, pa.int64()))
        first = self.description.first_epoch
        self.description = SinkDescription(
            self.uid, "TableSink", self.path, self.path, stored_columns(self.schema), first
        )
        self.restart()

    def run(self, epochs: int = 1, *, rows: int = ROWS, history: bool = True, tidy: bool = True) -> None:
        for _ in range(epochs):
            self.publish(rows, history=history)
            self.commit()
            if tidy:
                self.tidy()

    def publish(self, rows: int = ROWS, *, history: bool = True) -> None:
        """Publishes the next epoch: it exists, and is not in the table yet."""
        self.epoch += 1
        batch = self.batch(rows)
        committables = self.write(batch)
        hashed = digest([batch.column(name) for name in digested(self.schema)]) if rows else 0
        ledger.add(self.totals, {ledger.sink_rows(self.uid): rows, ledger.sink_digest(self.uid): hashed})
        self.manifest = Manifest(
            JOB,
            self.epoch,
            self.epoch,
            self.attempt,
            1000 * self.epoch,
            128,
            [],
            committables,
            committables,
            dict(self.totals),
            JobDescription(sinks=[self.description]),
        )
        published = self.log.publish(self.record, self.log.write_manifest(self.manifest))
        assert published is not None
        self.record = published
        if history:
            History(str(self.folder), JOB).append(completed(self.epoch, self.totals))
        old = self.epoch - RETAINED
        for generation in range(1, self.attempt.generation + 1):
            self.store.delete(self.paths.checkpoint(generation, old))

    def commit(self) -> None:
        assert self.record.newest is not None
        self.committer.commit(CommitPermit.issue(self.record.newest), self.manifest.commits)

    def tidy(self, minutes: float = 10) -> None:
        self.now_ms += minutes * MINUTES_MS
        self.committer.tidy(self.attempt.generation, self.epoch, max(1, self.epoch - RETAINED), self.now_ms)

    def batch(self, rows: int) -> pa.RecordBatch:
        numbers = range(self.rows, self.rows + rows)
        self.rows += rows
        values: dict[str, list[Any]] = {
            "n": list(numbers),
            "name": [f"user {n % 5}" for n in numbers],
            "at": [1_700_000_000_000_000 + n for n in numbers],
            "tags": [[str(n), "x"][: n % 3] for n in numbers],
            "place": [{"lat": n / 2, "lon": None} for n in numbers],
        }
        arrays = [pa.array(values.get(field.name, [7] * rows), field.type) for field in self.schema]
        return pa.record_batch(arrays, schema=self.schema)

    def write(self, batch: pa.RecordBatch) -> list[Committable]:
        made = []
        half = batch.num_rows // 2
        for subtask, part in enumerate((batch.slice(0, half), batch.slice(half))):
            writer = self.writers[subtask]
            writer.begin()
            writer.write(part)
            piece = writer.pre_commit()
            if piece is not None:
                made.append(Committable(self.uid, subtask, self.attempt, self.epoch, 1, piece.persist()))
        return made

    def rewind(self, *, hide: bool = True, commit: bool = True) -> tuple[int, int]:
        """The newest snapshot is lost, and a person goes back to the one before it."""
        assert self.record.newest is not None
        damaged = self.folder / self.record.newest.path
        damaged.write_bytes(b"no manifest")
        own: dict[str, Committer] = {self.uid: self.sink.committer(self.store, self.paths)} if commit else {}
        old, new = go_back(self.log, own, lambda sink: None, "a person", lambda: None, hide=hide)
        last = self.log.last()
        assert last is not None and last.newest is not None
        self.totals = dict(self.log.read_manifest(last.newest).ledger)
        self.record, self.epoch = last, new
        return old, new

    # --- the audit ---

    def audit(self, **options: Any) -> list[Fact]:
        """Audits, keeps what was seen, and returns what is wrong."""
        tables, of = look(str(self.folder), JOB, **options)
        wrong = [fact for table in tables for fact in table.facts if not fact.holds]
        _remember(tables, of, lambda text: None)
        self.looked = {table.name: table.looked for table in tables}
        return wrong

    # --- tampering ---

    def files(self) -> list[Path]:
        """Returns the files that readers see, oldest first."""
        entries = [line for record in self.records() for line in record.read_text().split("\n")[1:]]
        names = dict.fromkeys(json.loads(line)["path"].rpartition("/")[2] for line in entries)
        return [self.table / name for name in names]

    def records(self) -> list[Path]:
        """Returns the records that readers follow."""
        numbers = {int(p.name.removesuffix(".compact")): p for p in (self.table / "_spark_metadata").glob("[0-9]*")}
        begin = max((n for n, path in numbers.items() if path.name.endswith(".compact")), default=0)
        return [path for number, path in sorted(numbers.items()) if number >= begin]

    def rewrite(self, path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
        """Changes the rows of a file, its size in the table's log, and the seals there, which have no key."""
        from tests.checks.small import Table as Spoiled

        pq.write_table(change(pq.read_table(path)), path, compression="zstd")
        for record in self.records():
            lines = record.read_text().split("\n")
            changed = [lines[0]]
            for line in lines[1:]:
                entry = json.loads(line)
                if entry["path"].endswith(path.name):
                    entry["size"] = path.stat().st_size
                changed.append(json.dumps(entry, separators=(",", ":")))
            Spoiled.write_record(record, "\n".join(changed))

    def drop(self, path: Path) -> None:
        """Takes a file out of the table's log, and seals the records again."""
        from tests.checks.small import Table as Spoiled

        for record in self.records():
            lines = record.read_text().split("\n")
            kept = [line for line in lines if not line.startswith("{") or path.name not in line]
            Spoiled.write_record(record, "\n".join(kept))

    def edit_history(self, epoch: int, by: int) -> None:
        events = self.folder / self.paths.history("events.jsonl")
        lines = [json.loads(line) for line in events.read_text().splitlines()]
        for event in lines:
            if event["epoch"] == epoch:
                name = ledger.sink_digest(self.uid)
                event["ledger"][name] = (event["ledger"][name] + by) % (1 << 64)
        events.write_text("".join(json.dumps(event) + "\n" for event in lines))

    def forget_history(self, until: int) -> None:
        """The history has lost what it says of epochs up to this one, as it does after some hours."""
        events = self.folder / self.paths.history("events.jsonl")
        lines = [line for line in events.read_text().splitlines() if json.loads(line)["epoch"] > until]
        events.write_text("".join(line + "\n" for line in lines))
