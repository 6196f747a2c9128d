"""The rows of these benches: two streams of keys, values and times. Row n is a pure function of n.

A key has a row every 20 s on average, so its sessions with a gap of 30 s hold some rows, and about every second row of
one stream finds a row of the other within 10 s.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KEYS = 10_000
STEP_MS = 2
START_MS = 1_700_000_000_000 - 1_700_000_000_000 % 3_600_000
FILES = 2
"""One for each subtask of a source. Each holds every second row, in order of event time."""
STREAMS = {"left": 0x9E37_79B9_7F4A_7C15, "right": 0xD1B5_4A32_D192_ED03}


def write(folder: Path, count: int) -> None:
    """Writes `count` rows of each stream into Parquet files."""
    for stream, seed in STREAMS.items():
        (folder / stream).mkdir()
        for part in range(FILES):
            n = np.arange(part, count, FILES)
            mixed = _mixed(n, np.uint64(seed))
            stamps = pa.array((START_MS + n * STEP_MS) * 1000).cast(pa.timestamp("us"))
            columns = {"id": n, "key": (mixed % KEYS).astype(np.int64), "value": (mixed >> 32 & 1023).astype(np.int64)}
            table = pa.table({**columns, "ts": stamps})
            pq.write_table(table, folder / stream / f"{part}.parquet", row_group_size=500_000)


def _mixed(n: np.ndarray, seed: np.uint64) -> np.ndarray:
    """Mixes the bits of row numbers (splitmix64)."""
    mixed = n.astype(np.uint64) * seed
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
