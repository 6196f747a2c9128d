"""Goal: what a job writes to other systems is there once, if its processes die.

Topology: two source subtasks → Delta, Iceberg and PostgreSQL (a real server); two slots on local Spark.
Faults: SIGKILL of a slot and of the JobMaster. Checks: all rows, as the libraries and the server give them.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.cluster.harness import RunningJob
from tests.cluster.jobs import make
from tests.cluster.test_recovery import jobmaster_of
from tests.servers.postgres import PostgresServer

ROWS = 100_000


def expected() -> list[tuple[int, int, int]]:
    columns = make(np.arange(ROWS, dtype=np.int64))
    return sorted(zip(*(columns[name].tolist() for name in ("ts", "key", "value")), strict=True))


def rows_of(table: pa.Table) -> list[tuple[int, int, int]]:
    moments = table["ts"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    return sorted(zip(moments, table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


@pytest.mark.promise("G4", "D11", "F2")
def test_a_killed_slot_and_a_killed_jobmaster_lose_and_double_nothing_in_other_systems(
    tmp_path: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres_server.use(monkeypatch)
    postgres_server.sql("CREATE TABLE numbers (key bigint, value bigint, ts timestamptz)")
    try:
        with RunningJob(tmp_path, "outside", folder=tmp_path, dsn=postgres_server.dsn) as job:
            os.kill(job.completed(2).slots[0].pid, signal.SIGKILL)
            job.wait_for("the second attempt", lambda status: status.attempt == 2 and status.running)
            job.completed(4)
            os.kill(jobmaster_of(job), signal.SIGKILL)
            job.wait_for("the second JobMaster", lambda status: status.generation == 2 and status.running)
            assert job.wait_until_ended().outcome == "finished"
        moment = "(extract(epoch from ts) * 1000000)::bigint"
        found = postgres_server.sql(f"SELECT {moment}, key, value FROM numbers ORDER BY ts, key, value")
    finally:
        postgres_server.sql("DROP TABLE numbers")
    assert found == expected()
    assert rows_of(DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()) == expected()
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    assert rows_of(catalog.load_table("weir.numbers").scan().to_arrow()) == expected()
