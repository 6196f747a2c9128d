"""Runs Dagster as users do: a real webserver, a real daemon and real run workers, with a home of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg

from engine.core.errors import WeirError
from engine.observe.client import JobClient
from orchestration.ui import Services, free_port, launch_job, prepare_home
from tests.cluster.harness import session_processes

PATIENCE_S = 300.0

signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that pytest cleans up after SIGTERM, too

T = TypeVar("T")


def eventually(what: str, look: Callable[[], T | None], patience_s: float = PATIENCE_S) -> T:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
        time.sleep(0.25)
    raise AssertionError(f"{what}: not in {patience_s:.0f} s")


class System:
    """Dagster's services as a context manager, which ends all services, runs and jobs."""

    def __init__(self, folder: Path, module: str) -> None:
        self.home = folder / "dagster"
        self.store = folder / "store"
        self.store.mkdir(parents=True)
        self._module = module
        self._jobs: set[str] = set()
        prepare_home(self.home)
        self.instance = dg.DagsterInstance.from_config(str(self.home))
        self.services = self._new_services()

    def _new_services(self) -> Services:
        return Services(self.home, free_port(), self._module, {"WEIR_STORE": str(self.store)})

    def __enter__(self) -> System:
        self.services.start()
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            for name in ("code", "daemon", "webserver"):
                print(f"--- {name}\n{self.services.log(name).read_text(errors='replace')[-6000:]}")
        self.services.stop()
        for name in self._jobs:
            end_job(JobClient(str(self.store), name))
        self.instance.dispose()

    def restart(self) -> None:
        self.services.stop()
        self.services = self._new_services()
        self.services.start()

    def client(self, name: str) -> JobClient:
        self._jobs.add(name)
        return JobClient(str(self.store), name)

    def launch(self, job: str, config: Mapping[str, object] | None = None) -> str:
        return launch_job(self.services.url, job, config)

    def status(self, run_id: str) -> dg.DagsterRunStatus:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run.status

    def finished(self, run_id: str, patience_s: float = PATIENCE_S) -> dg.DagsterRunStatus:
        def look() -> dg.DagsterRunStatus | None:
            run = self.instance.get_run_by_id(run_id)
            return run.status if run is not None and run.is_finished else None

        return eventually(f"run {run_id} ends", look, patience_s)

    def succeeds(self, job: str, config: Mapping[str, object] | None = None, patience_s: float = PATIENCE_S) -> str:
        run_id = self.launch(job, config)
        status = self.finished(run_id, patience_s)
        assert status is dg.DagsterRunStatus.SUCCESS, f"{job}: {status.value}\n{self.story(run_id)}"
        return run_id

    def story(self, run_id: str) -> str:
        return "\n".join(str(entry.user_message or entry.message) for entry in self.instance.all_logs(run_id))[-6000:]

    def materializations(self, *key: str) -> list[dict[str, Any]]:
        """Returns the metadata of an asset's materializations, newest first."""
        records = self.instance.fetch_materializations(dg.AssetKey(list(key)), limit=100).records
        found = [record.asset_materialization for record in records]
        return [{name: value.value for name, value in m.metadata.items()} for m in found if m is not None]

    def check(self, name: str, *key: str) -> dg.AssetCheckEvaluation | None:
        """Returns the newest result of a check."""
        check_key = dg.AssetCheckKey(dg.AssetKey(list(key)), name)
        record = self.instance.event_log_storage.get_latest_asset_check_execution_by_key([check_key]).get(check_key)
        if record is None or record.event is None:
            return None
        event = record.event.dagster_event
        if event is None or event.event_type is not dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            return None  # the check is planned: a run will evaluate it
        return event.asset_check_evaluation_data


def end_job(client: JobClient) -> None:
    """Cancels a detached job, and waits until none of its processes is left."""
    desired = client.folder.read_desired()
    if desired is None or client.ended() is not None:
        return
    with contextlib.suppress(WeirError):
        client.wait_until_running(180)  # a job that is still starting can't be cancelled
    address = client.folder.read_address()
    with contextlib.suppress(WeirError):
        client.cancel("test")
        client.wait_until_ended(180)
    if address is not None:
        eventually("the job's processes end", lambda: None if session_processes(address.pid) else True, 180)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
