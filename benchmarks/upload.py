"""Measures what the upload of a subtask's state costs: CPU and memory per GB, beside a plain write of the same bytes.

`python -m benchmarks.upload [MB] [FOLDER]`. The state is that of a window operator that was restored and has taken some
rows since. CPU seconds, unlike rates, mean something on a machine that others use, too.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.rescale import BYTES_PER_KEY
from benchmarks.weir import WORK, fresh_folder
from engine.core.paths import JobPaths
from engine.core.ports import Offload
from engine.host.system import QueueOffload, SystemClock
from engine.protocol.ids import AttemptId, SubtaskId
from engine.runtime.operators.base import WATERMARKS, OperatorContext, RestoredState
from engine.runtime.operators.window import WindowMerge
from engine.snapshot.upload import upload
from engine.state.key_groups import DEFAULT_MAX_PARALLELISM, key_groups, range_of
from engine.state.key_hash import hash_columns
from engine.state.windows.aggregates import count, total
from engine.state.windows.plan import AggregatePlan
from engine.state.windows.spans import Spans
from engine.store.directory import DirectoryStore

SUBTASK, ATTEMPT, UID = SubtaskId("windows", 0), AttemptId(1, 1), "windows"
GROUPS = range_of(0, 2, DEFAULT_MAX_PARALLELISM)
DAY_MS = 86_400_000
BLOCK = 8 << 20
ROUNDS, NEW_BATCHES, BATCH_ROWS = 4, 90, 4_000


@dataclass(frozen=True)
class Cost:
    seconds: float
    user_s: float
    system_s: float

    @classmethod
    def now(cls) -> Cost:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(time.monotonic(), used.ru_utime, used.ru_stime)

    def per_gb_since(self, before: Cost, size: int) -> str:
        factor = 1e9 / size
        spent = [(now - then) * factor for now, then in zip(self._all(), before._all(), strict=True)]
        return f"user {spent[1]:.2f}, system {spent[2]:.2f} s of CPU per GB ({1000 / spent[0]:.0f} MB/s)"

    def _all(self) -> tuple[float, float, float]:
        return self.seconds, self.user_s, self.system_s


def main(megabytes: int, folder: Path) -> None:
    store = DirectoryStore(folder)
    operator, keys = _restored(megabytes * 1_000_000 // BYTES_PER_KEY, store)
    for number in range(ROUNDS):
        for batch in range(NEW_BATCHES):
            taken = np.random.default_rng((number, batch)).choice(keys, BATCH_ROWS)
            operator.process(_partials(taken).to_batches()[0], None)  # type: ignore[arg-type]
        snapshot, resident = operator.snapshot(number), _resident(peak=False)
        begun = Cost.now()
        paths, groups, most = JobPaths("job"), GROUPS, DEFAULT_MAX_PARALLELISM
        made = upload(store, paths, ATTEMPT, number, SUBTASK, groups, most, {UID: snapshot}, SystemClock().now_ms)
        size = made.state.files[0].size
        spent = Cost.now().per_gb_since(begun, size)
        more = (_resident(peak=True) - resident) / size
        print(f"upload of {size / 1e6:.0f} MB: {spent}; memory grew by {more:.2f} of the state")
        print(f"  plain write: {_plain_write(folder, size)}; load {os.getloadavg()[0]:.0f}", flush=True)
        del snapshot, made
        store.delete("job")


def _restored(rows: int, store: DirectoryStore) -> tuple[WindowMerge, np.ndarray]:
    """Returns an operator with this many rows, and their keys."""
    keys = np.arange(2 * rows)
    groups = key_groups(hash_columns([pa.array(keys)]), DEFAULT_MAX_PARALLELISM)
    order = np.argsort(groups, kind="stable")[: np.count_nonzero(groups < GROUPS.end)]
    schema = pa.schema([("key", pa.int64()), ("value", pa.int64())])
    plan = AggregatePlan(["key"], {"rows": count(), "total": total("value")}, schema)
    offload: Offload = QueueOffload(lambda done: done(), threads=1)
    most, clock = DEFAULT_MAX_PARALLELISM, SystemClock()
    context = OperatorContext(
        UID, SUBTASK, 2, most, GROUPS, ATTEMPT, "job", clock, offload, store, JobPaths("job"), {}
    )  # fmt: skip
    operator = WindowMerge(plan, Spans(DAY_MS, DAY_MS, 0), plan.result_schema)
    saved = RestoredState([{WATERMARKS: [[GROUPS.start, GROUPS.end, -1]]}], [("panes", _partials(keys[order]))])
    operator.open(context, saved)
    return operator, keys[order]


def _partials(keys: np.ndarray) -> pa.Table:
    columns = [keys, np.zeros(len(keys), np.int64), np.ones(len(keys), np.int64), keys & 1023]
    return pa.table(columns, names=["key", "_window", "_rows", "value$sum"])


def _plain_write(folder: Path, size: int) -> str:
    file, block, begun = folder / "plain", os.urandom(BLOCK), Cost.now()
    with file.open("wb", buffering=0) as out:
        for _ in range(size // BLOCK):
            out.write(block)
        os.fsync(out.fileno())
    spent = Cost.now().per_gb_since(begun, size // BLOCK * BLOCK)
    file.unlink()
    return spent


def _resident(*, peak: bool) -> int:
    """Returns the bytes that the process holds, or the most that it has held since it was asked for the former."""
    if not peak:
        Path("/proc/self/clear_refs").write_text("5")
    name = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    place = Path(sys.argv[2]) if len(sys.argv) > 2 else fresh_folder("upload")
    try:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 500, place)
    finally:
        for folder in (place, WORK):
            shutil.rmtree(folder, ignore_errors=True)
