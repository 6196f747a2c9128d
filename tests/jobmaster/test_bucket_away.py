"""A bucket of a real MinIO server that fails for a while under a running job (issue 12, bad input).

Topology: that of test_savepoints.py, in one thread, on a bucket behind a proxy. Faults: after the first epoch, the next
requests fail: the server answers 503, or 500 after the work; answers are lost, cut, late or never come; the credentials
are wrong for a while. The store repeats nothing by itself, so the JobMaster and the slots see every fault. Checks: the
table, the counts per key, and how the job ends.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.jobmaster.actions import Outcome
from engine.store.s3 import S3Store
from tests.jobmaster.test_savepoints import RECORDS, Begun, Run, check_counts, counting
from tests.servers.faulty import Fault, FaultyProxy
from tests.servers.minio import MinioServer

BROKEN = 7
"""So many requests fail: the slots of a local run send no heartbeats, so it may stand still for some seconds only."""
ANSWER_S = 5.0
"""A store waits as long for an answer, so only two requests meet silence."""


class Broken:
    """A proxy's decision: the next `left` requests have this fault."""

    def __init__(self, fault: Fault | None) -> None:
        self.left = BROKEN if fault is not Fault.SILENT else 2
        self._fault = fault

    def __call__(self, method: str, address: str) -> Fault | None:
        if not self.left:
            return None
        self.left -= 1
        return self._fault


@pytest.fixture
def run(proxy: FaultyProxy, tmp_path: Path) -> Run:
    store = S3Store(f"s3://weir/{tmp_path.name}", answer_s=ANSWER_S, retries=0)
    return Run(counting(), after=Begun(store, "here")).epochs_done(1)  # type: ignore[arg-type]


def check_nothing_lost(run: Run) -> None:
    assert run.ended is not None and run.ended.outcome is Outcome.FINISHED
    assert run.numbers() == list(range(RECORDS))
    check_counts(run.rows("out"))


@pytest.mark.promise("C2", "H8")
@pytest.mark.parametrize(
    "fault", [Fault.REFUSE, Fault.FAIL_AFTER, Fault.LOSE_ANSWER, Fault.CUT_ANSWER, Fault.SLOW, Fault.SILENT]
)
def test_a_bucket_that_fails_under_a_running_job_loses_and_doubles_nothing(
    run: Run, proxy: FaultyProxy, fault: Fault
) -> None:
    broken = proxy.decide = Broken(fault)
    run.run()
    assert broken.left == 0
    check_nothing_lost(run)


@pytest.mark.promise("C2", "H8")
def test_credentials_that_are_wrong_for_a_while_are_said_and_the_job_goes_on(
    run: Run, proxy: FaultyProxy, minio_server: MinioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken(None)

    def decide(method: str, address: str) -> Fault | None:
        broken(method, address)
        if not broken.left:
            minio_server.use(monkeypatch)  # and this request is the last one with the wrong key
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        return None

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    proxy.decide = decide
    run.run()
    assert broken.left == 0
    assert "is AWS_SECRET_ACCESS_KEY right?" in " ".join(map(str, run.events))
    check_nothing_lost(run)
