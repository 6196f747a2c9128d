"""Reads a job's tables all the time as users do: with plain `spark.read.parquet`, in another Spark application.

`python -m checks.reader` runs until its standard input ends, so it never outlives the drill. Each read is one line of
JSON: how many rows it saw, and their digest. `judge_reads` then compares them with the totals of the job's checkpoints.
A read must see, row by row, a whole number of epochs, and never fewer than an earlier read.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from checks.history import EpochTotals
from checks.spec import AuditedTable
from engine.protocol import ledger
from engine.state.digests import digest, digested

_PAUSE_S = 0.05
_WARM_READS = 3


class WatchedTable(msgspec.Struct, frozen=True):
    name: str
    uid: str
    folder: str
    schema: str
    keys: tuple[str, ...]


class Read(msgspec.Struct, frozen=True):
    """One read of a table. A read with an `error` counts as wrong. `last` marks a read after the job's end."""

    table: str
    at_ms: int
    took_ms: int
    rows: int = 0
    digest: int = 0
    error: str = ""
    last: bool = False


def digest_of(table: pa.Table, schema: pa.Schema) -> int:
    """Returns the digest that the sink counts in the ledger: the sum of the rows' hashes, in any order."""
    hashed = digested(schema)
    batches = table.select(schema.names).cast(schema).to_batches()
    return sum(digest([batch.column(name) for name in hashed]) for batch in batches) % (1 << 64)


# --- judging, in the drill's process ---


def judge_reads(reads: Iterable[Read], tables: Sequence[AuditedTable], epochs: Sequence[EpochTotals]) -> list[str]:
    """Returns a sentence for each wrong read and each table without a last read; empty if all is well."""
    reads = list(reads)
    violations = []
    for table in tables:
        mine = [read for read in reads if read.table == table.name]
        violations += _judge(table.name, mine, visible_states(table.uid, epochs))
        if not any(read.last and not read.error for read in mine):
            violations.append(f"{table.name}: there is no read of the table after the job's end")
    return violations


def visible_states(uid: str, epochs: Sequence[EpochTotals]) -> list[tuple[int, int]]:
    """Returns (rows, digest) of a sink's table after 0, 1, 2, … epochs."""
    names = ledger.sink_rows(uid), ledger.sink_digest(uid)
    return [(0, 0), *((e.totals.get(names[0], 0), e.totals.get(names[1], 0)) for e in epochs)]


def _judge(table: str, reads: list[Read], states: list[tuple[int, int]]) -> list[str]:
    violations = []
    least = 0  # the newest epoch that an earlier read has shown
    for read in reads:
        at = datetime.fromtimestamp(read.at_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
        if read.error:
            violations.append(f"{table} at {at}: the table could not be read: {read.error}")
            continue
        seen = [epoch for epoch, state in enumerate(states) if state == (read.rows, read.digest)]
        if not seen:
            violations.append(
                f"{table} at {at}: {read.rows} rows are not a whole number of epochs; {_near(states, read)}"
            )
        elif seen[-1] < least:
            violations.append(f"{table} at {at}: the read saw epoch {seen[-1]} after an earlier one had seen {least}")
        elif read.last and seen[-1] != len(states) - 1:
            violations.append(
                f"{table}: the read after the job's end saw only {read.rows} rows of {states[-1][0]}, epoch {seen[-1]}"
            )
        else:
            least = next(epoch for epoch in seen if epoch >= least)
    return violations


def _near(states: list[tuple[int, int]], read: Read) -> str:
    same = [str(epoch) for epoch, (rows, _) in enumerate(states) if rows == read.rows]
    if same:
        return f"epoch {same[0]} has the same number of rows, but other ones"
    below = max(epoch for epoch, (rows, _) in enumerate(states) if rows < read.rows)
    above = next((epoch for epoch, (rows, _) in enumerate(states) if rows > read.rows), None)
    more = "there is no later one" if above is None else f"epoch {above} at {states[above][0]}"
    return f"epoch {below} ends at {states[below][0]}, {more}"


# --- reading, in a process of its own ---


def main() -> None:
    """Reads until told to stop. Arguments: the tables as JSON, Parquet of the first one's schema, the reads' file."""
    tables = msgspec.json.decode(sys.argv[1], type=list[WatchedTable])
    from checks.spark import reading_session

    spark = reading_session("weir reader", threads=1)
    for _ in range(_WARM_READS):  # the first reads take seconds: they are done before the job starts
        _state(spark, tables[0], sys.argv[2])
    with Path(sys.argv[3]).open("ab", buffering=0) as out:  # the drill waits for this file: the reader is ready
        while not _told_to_stop():
            started = time.monotonic()
            for table in tables:
                _read(spark, table, out)
            time.sleep(max(_PAUSE_S, (time.monotonic() - started) / 2))  # the job needs the cores too
        for table in tables:
            _read(spark, table, out, last=True)
    os._exit(0)  # the JVM ends when its pipe closes; stopping it in order takes seconds


def _read(spark: Any, table: WatchedTable, out: Any, last: bool = False) -> None:
    if not Path(table.folder).exists():
        return
    at_ms, started = time.time_ns() // 1_000_000, time.monotonic()
    try:
        result = Read(table.name, at_ms, 0, *_state(spark, table, table.folder), last=last)
    except Exception as error:
        result = Read(table.name, at_ms, 0, error=str(error).split("\n")[0][:500] or type(error).__name__, last=last)
    result = msgspec.structs.replace(result, took_ms=int(1000 * (time.monotonic() - started)))
    out.write(msgspec.json.encode(result) + b"\n")


def _state(spark: Any, table: WatchedTable, folder: str) -> tuple[int, int]:
    from checks.spark import read_published

    audited = AuditedTable(table.name, table.uid, table.schema, table.keys)
    rows = read_published(spark, folder, audited).toArrow()
    return rows.num_rows, digest_of(rows, audited.arrow_schema)


def _told_to_stop() -> bool:
    """True when standard input is closed: by the drill, or by the kernel if the drill has died."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


if __name__ == "__main__":
    main()
