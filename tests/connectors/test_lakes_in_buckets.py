"""Lake tables in a bucket, against a real MinIO server. Goal and checks: as in `test_lakes.py`, where the faults are.

Topology: a source with two splits → the sink. Faults: a JobMaster sleeps in the middle of a commit through its own
replacement, and another writer commits in between: this needs commits that exclude each other in a bucket, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from engine.connectors.delta import DeltaSink
from engine.connectors.iceberg import IcebergSink
from engine.core.errors import StoreError
from engine.core.paths import JobPaths
from engine.core.sinks import Sink
from engine.testing import LocalRun, run
from tests.connectors.lakes import DeltaLake, IcebergLake, Lake
from tests.connectors.test_lakes import ALL, at_publish, two_splits, writing
from tests.servers.minio import MinioServer


class DeltaInBucket(DeltaLake):
    @property
    def path(self) -> str:
        return f"s3://weir/{self.folder.name}/orders"

    @property
    def options(self) -> dict[str, str]:
        return {"aws_allow_http": "true", "aws_region": "us-east-1"}

    def read(self) -> pa.Table:
        return DeltaTable(self.path, storage_options=self.options).to_pyarrow_table()

    def append(self, rows: pa.Table) -> None:
        write_deltalake(self.path, rows, mode="append", storage_options=self.options)


class IcebergInBucket(IcebergLake):
    def __init__(self, folder: Path, server: MinioServer) -> None:
        super().__init__(folder)
        self._server = server

    @property
    def properties(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"s3://weir/{self.folder.name}/lake",
            "s3.endpoint": self._server.endpoint,
            "s3.access-key-id": self._server.environ["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": self._server.environ["AWS_SECRET_ACCESS_KEY"],
        }

    def sink(self) -> Sink:
        return IcebergSink("shop.orders", properties=self.properties)


@pytest.fixture(params=["delta", "iceberg"])
def lake(
    request: pytest.FixtureRequest, minio_server: MinioServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Lake:
    minio_server.use(monkeypatch)
    return DeltaInBucket(tmp_path) if request.param == "delta" else IcebergInBucket(tmp_path, minio_server)


@pytest.mark.promise("D11", "F2")
def test_a_job_master_that_sleeps_in_a_commit_through_its_own_replacement_publishes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = two_splits()
    first = LocalRun(writing(lake.sink(), source), 2, {})
    real = lake.committer._publish

    def replaced() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lake.committer, "_publish", real)
            run(writing(lake.sink(), source), parallelism=2, after=first)

    outcomes = at_publish(monkeypatch, lake, 2, replaced)
    with pytest.raises(AssertionError):
        first.run()
    assert outcomes == ["refused"]
    assert lake.numbers() == ALL


@pytest.mark.promise("D11")
def test_what_others_commit_in_between_makes_a_commit_try_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = at_publish(monkeypatch, lake, 2, lambda: lake.append(pa.table({"n": [100]})))
    run(writing(lake.sink(), two_splits()), parallelism=2)
    assert outcomes[:2] == ["refused", "published"]
    assert lake.numbers() == [*ALL, 100]


@pytest.mark.promise("H8")
def test_wrong_credentials_are_an_error_from_outside_that_names_the_table(
    minio_server: MinioServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    minio_server.use(monkeypatch)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    sink = DeltaSink(f"s3://weir/{tmp_path.name}/orders")
    committer: Any = sink.committer(LocalRun(writing(sink, two_splits()), 1, {}).store, JobPaths("test"))
    with pytest.raises(StoreError, match=r"the Delta table s3://weir/.*/orders: ") as caught:
        committer.claim("1d", 1)
    assert "wrong-secret" not in str(caught.value) and "\n" not in str(caught.value)
