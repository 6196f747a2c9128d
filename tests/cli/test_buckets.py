"""`weir` with a store in a bucket: what is wrong is said in one clear error, within seconds, before Spark starts.

Topology: a real MinIO server behind a proxy; `weir` in a process of its own. Faults: wrong credentials, a bucket that
does not exist, a server that is away, answers 500, is silent, or ignores conditions.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster import events
from engine.jobmaster.actions import Outcome
from engine.observe.history import History
from tests.cli.command import weir
from tests.servers.faulty import Fault, FaultyProxy, times

JOB = "tests.cluster.jobs:endless"


@pytest.fixture
def store(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("WEIR_STATE", str(tmp_path / "state"))
    return f"s3://weir/{tmp_path.name}"


def refusal(store: str) -> str:
    """Returns what `weir submit` says when it refuses, after some retries and without a traceback."""
    began = time.monotonic()
    done = weir("submit", JOB, store=store)
    assert done.returncode == 1 and time.monotonic() - began < 240
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong", "is AWS_SECRET_ACCESS_KEY right?"),
        ("AWS_ACCESS_KEY_ID", "nobody", "does not know the access key in AWS_ACCESS_KEY_ID"),
        ("AWS_SECRET_ACCESS_KEY", "", "the environment lacks AWS_SECRET_ACCESS_KEY"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1", "no connection to the server in AWS_ENDPOINT_URL"),
        ("AWS_ENDPOINT_URL", "minio:9000", "AWS_ENDPOINT_URL must be an address such as https://minio.example:9000"),
    ],
)
def test_a_wrong_environment_is_said_by_its_name(
    store: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert said in refusal(store)


def test_a_bucket_that_does_not_exist_is_said(proxy: FaultyProxy) -> None:
    assert "the bucket does not exist: create it, or choose another one" in refusal("s3://no-such-bucket/x")


@pytest.mark.parametrize("fault", [Fault.FAIL_AFTER, Fault.SILENT])
def test_a_server_that_fails_or_is_silent_is_said_in_time(store: str, proxy: FaultyProxy, fault: Fault) -> None:
    proxy.decide = times(1000, fault, "PUT")
    assert "fails, or does not answer in time" in refusal(store)


def test_a_server_that_ignores_conditions_is_refused(store: str, proxy: FaultyProxy) -> None:
    proxy.decide = times(1000, Fault.IGNORE_CONDITION, "PUT")
    assert "does not honour conditional writes (If-None-Match)" in refusal(store)


def test_an_address_of_another_kind_is_refused(proxy: FaultyProxy) -> None:
    assert "write a directory, or s3://bucket/prefix" in refusal("gs://lake/x")


def test_the_doctor_checks_a_bucket_and_the_folder_of_this_machine(store: str, proxy: FaultyProxy) -> None:
    good = weir("doctor", store=store)
    said = " ".join(good.stdout.split())
    assert f"ok bucket {store} at http://127.0.0.1" in said and " ok run folder /" in said, good.stdout
    assert " store " not in said, "the folder of this machine is not the store"
    assert "a name is created once" in good.stdout
    proxy.decide = times(1000, Fault.IGNORE_CONDITION, "PUT")
    bad = weir("doctor", store=store)
    assert bad.returncode == 1 and "docs/s3.md lists what a bucket needs" in bad.stdout


def test_jobs_checkpoints_and_restarts_are_shown_from_the_bucket_on_another_machine(
    store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = RunFolder(store, "endless")
    launch = MasterLaunch(path=JOB, name="endless", store=store, max_slots=2, id="one")
    folder.prepare()
    folder.write_launch(launch)
    folder.want_running(launch, "cli")
    history = History(store, "endless")
    history.append(events.stamped(events.Triggered(7, "1.1"), 1000, 1))
    history.flush()
    monkeypatch.setenv("WEIR_STATE", str(tmp_path / "another"))
    assert "elsewhere" in weir("jobs", store=store).stdout
    assert '"checkpoint":7' in weir("checkpoints", "endless", "--json", store=store).stdout.replace(" ", "")
    assert "no line" in weir("logs", "endless", store=store).stderr
    folder.write_exit(MasterExit(Outcome.CANCELLED, "cancelled"), launch)
    monkeypatch.setenv("WEIR_STATE", str(tmp_path / "state"))
    assert "cancelled" in weir("jobs", store=store).stdout
