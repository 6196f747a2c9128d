"""Generated records: a seed and the number of a record decide it, so that a job can be replayed, drilled and audited.

Events are numbered in the order of event time. They arrive in another order, but only within blocks of `BLOCK` events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.api import DataStream, StreamEnvironment, WatermarkStrategy
from engine.connectors.generator import BUFFER_TIMEOUT_MS, Columns, GeneratorSource

START_MS = 1_700_000_000_000
BLOCK = 16
SPLITS = 2
SEED = 1


@dataclass(frozen=True)
class Generated:
    """The input of a job. `make` maps event numbers and a seed to the columns of `fields`.

    A record also has `event_id`, the number of its event, and `ts`. Event k happens k × `step_ms` after the start, so
    no two events have the same time, and the order of a key's events is the same for every reader.
    """

    uid: str
    fields: str
    step_ms: int
    make: Callable[[np.ndarray, int], Columns]

    @property
    def schema(self) -> str:
        return f"event_id long, {self.fields}, ts timestamp"

    def columns(self, n: np.ndarray, seed: int = SEED) -> Columns:
        """Returns the records with the numbers n, in the order in which they arrive."""
        event = arrived(n, seed)
        return {"event_id": event, **self.make(event, seed), "ts": 1000 * (START_MS + event * self.step_ms)}

    def read(self, env: StreamEnvironment) -> DataStream:
        """Reads the records, with event time. Declares the parameters that all jobs of generated records share."""
        rows = env.params.get("rows", 0, "records in all; 0: no end")
        rate = env.params.get("rate", 1000, "records per second; 0: as fast as possible")
        seed = env.params.get("seed", SEED, "decides the records")
        interval = env.params.get("interval", "1 s", "time between checkpoints")
        buffer_ms = env.params.get("buffer_ms", BUFFER_TIMEOUT_MS, "how long records are gathered into one batch")
        raw = env.params.get("raw", False, f"also write every record to the table {self.uid!r} (for drills)")
        env.enable_checkpointing(interval=interval)
        source = GeneratorSource(
            lambda n: self.columns(n, seed), SPLITS, rows or None, rate or None, buffer_timeout_ms=buffer_ms
        )
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(BLOCK * self.step_ms).with_timestamps("ts")
        records = env.from_source(source, self.schema, uid=self.uid, digest=raw)
        timed = records.assign_timestamps_and_watermarks(strategy)
        if raw:
            timed.to_spark_table(self.uid, uid="raw")
        return timed


def arrived(n: np.ndarray, seed: int) -> np.ndarray:
    """Returns the number of the event that arrives as record n: each block of events arrives in an order of its own."""
    return n ^ (chance(n // BLOCK, seed) % BLOCK)


def chance(n: np.ndarray, seed: int, salt: int = 0) -> np.ndarray:
    """Returns numbers from 0 to 2⁶³ − 1 that look random: a pure function of n, seed and salt (SplitMix64)."""
    start = (seed * 0x9E3779B97F4A7C15 + salt * 0xD1B54A32D192ED03) % (1 << 64)
    x = (n.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)
