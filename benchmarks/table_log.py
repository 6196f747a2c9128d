"""The cost of a commit to a Weir table after 10, 1,000 and 10,000 epochs, with and without folding.

One table with two files of 100 rows per epoch, one epoch per second of virtual time, in a folder of this machine; no
Spark. Times are CPU times, because other work on the machine must not count. A compact commit is the slowest of ten
in a row. Folding runs between the commits here, and beside them in a JobMaster, so its time is told apart.
"""

from __future__ import annotations

import io
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import Result, Say
from engine.connectors.table import TableCommitter, published
from engine.connectors.table.committer import file_name_of
from engine.connectors.table.log import Entries, TableLog, base_of, is_compact
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable, ManifestRef
from engine.store.directory import DirectoryStore

AT = (10, 1_000, 10_000)
PER_EPOCH = 2
RETAINED = 3
HOUR_MS = 3_600_000.0
ATTEMPT = AttemptId(1, 1)
TABLE = "t"


@dataclass(frozen=True)
class Point:
    """The table after so many epochs. `log_bytes` are those of all records, `tidy_ms` is the folding of an epoch."""

    epoch: int
    plain_ms: float
    compact_ms: float
    tidy_ms: float
    visible: int
    files: int
    records: int
    log_bytes: int


class Unsynced(DirectoryStore):
    """A folder without fsync: its time does not depend on the number of epochs, and is the disk's."""

    @staticmethod
    def _fsync(path: Path) -> None:
        pass


class _Run:
    def __init__(self, folder: Path, fold_bytes: int | None) -> None:
        self.folder = folder / TABLE
        self.store = Unsynced(folder)
        self.committer = TableCommitter(self.store, TABLE, "job", "", fold_bytes, HOUR_MS)
        self.committer.claim("1d", 1)
        out = io.BytesIO()
        rows = {"key": np.arange(100), "value": np.random.default_rng(1).random(100)}
        pq.write_table(pa.table(rows), out, compression="zstd")
        self._file = out.getvalue()
        self._commits: list[float] = []
        self._tidied: list[float] = []

    def epoch(self, epoch: int) -> None:
        names = [file_name_of("1d", ATTEMPT, subtask, epoch) for subtask in range(PER_EPOCH)]
        for name in names:
            self.store.write(f"{TABLE}/{name}", self._file)
        payloads = [{"path": f"{TABLE}/{name}", "size": len(self._file)} for name in names]
        committables = [Committable("out", n, ATTEMPT, epoch, 1, payload) for n, payload in enumerate(payloads)]
        began = time.process_time()
        self.committer.commit(CommitPermit.issue(ManifestRef("m", "00", epoch, epoch)), committables)
        committed = time.process_time()
        self.committer.tidy(1, epoch, max(1, epoch - RETAINED + 1), epoch * 1000.0)
        self._tidied.append((time.process_time() - committed) * 1000)
        self._commits.append((committed - began) * 1000)

    def jump_to(self, epoch: int) -> None:
        """Makes the log that so many epochs without folding leave, as far as the next commit reads it."""
        log = TableLog(self.store, TABLE)
        lines = [
            log.line(f"{TABLE}/{file_name_of('1d', ATTEMPT, subtask, old)}", len(self._file))
            for old in range(1, epoch + 1)
            for subtask in range(PER_EPOCH)
        ]
        for number in range(base_of(epoch), epoch):
            own = lines[: PER_EPOCH * (number + 1)] if is_compact(number) else lines[PER_EPOCH * number :][:PER_EPOCH]
            log.create(number, Entries(own, sealed=True))

    def point(self, epoch: int) -> Point:
        last = sorted(self._commits[-10:])
        records = [path for path in (self.folder / "_spark_metadata").iterdir() if path.name[0].isdigit()]
        return Point(
            epoch,
            round(last[len(last) // 2], 3),
            round(last[-1], 3),
            round(sum(self._tidied[-500:]) / len(self._tidied[-500:]), 3),
            len(published(self.store, TABLE) or []),
            len(list(self.folder.glob("*.parquet"))),
            len(records),
            sum(path.stat().st_size for path in records),
        )


def with_folding(epochs: int = AT[-1], at: tuple[int, ...] = AT) -> list[Point]:
    folder = Path(tempfile.mkdtemp(prefix="weir-table-log-"))
    try:
        run, points = _Run(folder, 128_000_000), []
        for epoch in range(1, epochs + 1):
            run.epoch(epoch)
            if epoch in at:
                points.append(run.point(epoch))
        return points
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def without_folding(epoch: int) -> Point:
    """Measures ten commits up to this epoch, of a table that was never folded."""
    folder = Path(tempfile.mkdtemp(prefix="weir-table-log-"))
    try:
        run = _Run(folder, None)
        if epoch > 10:
            run.jump_to(epoch - 10)
        for number in range(epoch - 9, epoch + 1):
            run.epoch(number)
        return run.point(epoch)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table_log(say: Say) -> list[Result]:
    say("10,000 epochs of a table with two files each, with folding; then some without")
    after = with_folding()
    before = [without_folding(epoch) for epoch in AT]
    for old, new in zip(before, after, strict=True):
        say(f"epoch {new.epoch:,}: compact commit {new.compact_ms} ms, without folding {old.compact_ms} ms; {new}")
    ratio = before[-1].compact_ms / after[-1].compact_ms
    return [
        Result(
            "table_log",
            "without folding",
            after[-1].compact_ms,
            before[-1].compact_ms,
            "ms",
            round(ratio, 1),
            f"CPU time of the commit of epoch 10,000, whose record is compact; at epoch 1,000 it is "
            f"{after[1].compact_ms} ms with folding and {before[1].compact_ms} without. {after[-1].visible} files are "
            f"visible instead of 20,000, {after[-1].records} records are kept. Folding takes {after[-1].tidy_ms} ms of "
            "CPU per epoch, beside the commits",
            "at most twice that of epoch 1,000",
            after[-1].compact_ms <= 2 * after[1].compact_ms,
            runs={"with folding": [asdict(p) for p in after], "without": [asdict(p) for p in before]},
        )
    ]
