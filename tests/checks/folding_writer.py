"""`python -m tests.checks.folding_writer STORE GENERATION`: commits and folds a table without end, until it is killed.

Each epoch has three rows, in three files: (epoch, 0), (epoch, 1), (epoch, 2). As a JobMaster does, the process first
commits the newest epoch again, whose files a small manifest names.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec
import pyarrow as pa

from engine.connectors.table import TableSink, planning
from engine.core.paths import JobPaths
from engine.core.sinks import WriterContext
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable, ManifestRef
from engine.store.directory import DirectoryStore

SCHEMA = pa.schema([("epoch", pa.int64()), ("part", pa.int64())])
PARTS = 3
PATHS = JobPaths("job")


class Pending(msgspec.Struct):
    epoch: int
    commits: list[Committable]


def main(folder: str, generation: int) -> None:
    planning.FAN = 4
    store, sink, attempt = DirectoryStore(folder), TableSink("t", fold_mb=128), AttemptId(generation, 1)
    committer = sink.committer(store, PATHS)
    manifest = Path(folder) / "pending.json"
    epoch = 0
    if manifest.exists():
        pending = msgspec.json.decode(manifest.read_bytes(), type=Pending)
        epoch = pending.epoch
    committer.claim("1d", epoch + 1)
    if epoch:
        committer.commit(_permit(epoch), pending.commits)
        committer.abort_unknown(_permit(epoch), attempt)
    writers = [sink.writer(WriterContext(part, attempt, store, PATHS, SCHEMA, "1d")) for part in range(PARTS)]
    while True:
        epoch += 1
        commits = []
        for part, writer in enumerate(writers):
            writer.begin()
            writer.write(pa.record_batch([pa.array([epoch]), pa.array([part])], schema=SCHEMA))
            piece = writer.pre_commit()
            assert piece is not None
            commits.append(Committable("out", part, attempt, epoch, 1, piece.persist()))
        draft = manifest.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(Pending(epoch, commits)))
        draft.replace(manifest)
        committer.commit(_permit(epoch), commits)
        committer.tidy(generation, epoch, max(1, epoch - 2), time.monotonic() * 1000)


def _permit(epoch: int) -> CommitPermit:
    return CommitPermit.issue(ManifestRef("m", "00", epoch, epoch))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
