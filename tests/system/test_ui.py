"""Goal: `make ui` starts and drills a job once, ends without leaving a process, and keeps its state.

Topology: `python -m orchestration.ui` as make starts it, with a home and a store of its own: the page-view job running,
one drill of it with its audit. Faults: the drill's own kill -9; Ctrl-C, a closed terminal and kill -9; a second
`make ui` beside the first, and beside the daemon that the first has left.
Checks: every check of the drill passes, Spark computes gold from committed epochs, only the Data Docs of the store are
served, no process of the UI is left, the job goes on, and nothing is done twice.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import httpx
import pytest

from checks.spec import WARNINGS
from engine.observe.client import JobClient
from orchestration.drills import CHECKS
from orchestration.ui import ROOT, free_port, launch_job
from tests.cluster.harness import session_processes
from tests.system.harness import end_job, eventually

DRILLS = dg.AssetKey(["drills", "pageviews"])
DAY = "2023-11-14"
"""The event time of the page views begins late on this day."""


class Ui:
    def __init__(self, folder: Path) -> None:
        self.home, self.store = folder / "dagster", folder / "store"
        self.output = folder / "output"
        self._port = free_port()
        self.sessions: set[int] = set()

    def command(self) -> list[str]:
        return [sys.executable, "-m", "orchestration.ui", "--home", str(self.home), "--port", str(self._port)]

    def start(self) -> None:
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(self.command(), cwd=ROOT, env=self.environment(), stdout=out, stderr=out)
        self.url = self.said(r"(http://127\.0\.0\.1:\d+)\n", 300)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "WEIR_STORE": str(self.store)}

    def said(self, pattern: str, patience_s: float) -> str:
        def look() -> str | None:
            assert self.process.poll() is None, self.output.read_text()
            found = re.search(pattern, self.output.read_text())
            return found.group(1) if found else None

        return eventually(f"{pattern} in the output:\n{self.output.read_text()}", look, patience_s)

    def take_another_port(self) -> None:
        self._port = free_port()

    def children(self) -> list[int]:
        """Returns the process groups that the UI started: code server, webserver, daemon."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == self.process.pid:
                found.append(int(stat.parent.name))
        return found

    def stop(self, ends: signal.Signals = signal.SIGINT) -> None:
        groups = self.children()
        self.process.send_signal(ends)
        assert self.process.wait(180) == 0, self.output.read_text()
        left = [line for group in groups for line in session_processes(group)]
        assert len(groups) == 3 and not left, f"left behind: {left}"


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    made = Ui(tmp_path_factory.mktemp("ui"))
    made.start()
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.send_signal(signal.SIGINT)
            made.process.wait(180)
        end_job(JobClient(str(made.store), "pageviews"))


@pytest.fixture(scope="module")
def instance(ui: Ui) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(ui.home)) as made:
        yield made


def metadata(event: dg.EventLogEntry | None) -> dict[str, Any]:
    assert event is not None and event.asset_materialization is not None
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def test_the_page_view_job_is_running_soon_after_the_first_start(ui: Ui, instance: dg.DagsterInstance) -> None:
    assert ui.said(r"start of pageviews: (\w+) \(", 300) == "success"
    assert JobClient(str(ui.store), "pageviews").status().running
    assert metadata(instance.get_latest_materialization_event(dg.AssetKey(["streams", "pageviews"])))["generation"] == 1


@pytest.mark.promise("D11", "H2", "H3")
def test_one_drill_is_finished_and_every_check_of_its_audit_is_green(ui: Ui, instance: dg.DagsterInstance) -> None:
    assert ui.said(r"drill of pageviews: (\w+) \(", 900) == "success"
    drill = metadata(instance.get_latest_materialization_event(DRILLS))
    assert (
        drill["records"] >= 100_000
        and drill["faults"] == "slot-killed"
        and drill["restarts"] >= 1
        and drill["recovery_s"] > 0
    )
    names = CHECKS.keys() - WARNINGS  # the killed worker may have left a file that no epoch published
    keys = [dg.AssetCheckKey(DRILLS, name) for name in names]
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    verdicts = {key.name: record.status.value for key, record in latest.items()}
    assert verdicts == dict.fromkeys(names, "SUCCEEDED")
    (observed,) = instance.fetch_observations(DRILLS, limit=1).records
    assert observed.asset_observation is not None
    figures = {name: value.value for name, value in observed.asset_observation.metadata.items()}
    assert figures["lost"] == figures["duplicated"] == 0 and figures["verdict"] == "passed"


def test_the_pages_of_the_audit_are_served_and_nothing_else_of_the_store(ui: Ui, instance: dg.DagsterInstance) -> None:
    (observed,) = instance.fetch_observations(DRILLS, limit=1).records
    assert observed.asset_observation is not None
    link = str(observed.asset_observation.metadata["data_docs"].value)
    assert link.startswith("/data_docs/drills/pageviews/"), "it names no port: the next make ui may have another one"
    shown = httpx.get(ui.url + link, timeout=60, follow_redirects=True)
    assert shown.status_code == 200 and "passed" in shown.text
    drill = str(shown.url).removesuffix("data_docs/index.html")
    assert not drill.startswith(ui.url), "a page with users' rows is of another origin than the UI"
    for other in ("", "drill.json", "pageviews/run/token", "data_docs/../pageviews/run/token"):
        assert httpx.get(drill + other, timeout=60).status_code == 404, other


def test_gold_is_what_spark_computes_from_committed_epochs(ui: Ui, instance: dg.DagsterInstance) -> None:
    days = eventually(
        "a day of event time", lambda: instance.get_dynamic_partitions("weir_pageviews_event_days") or None
    )
    assert days[0] == DAY
    run_id = launch_job(ui.url, "pageviews_gold", tags={"dagster/partition": DAY})
    run = eventually("gold", lambda: r if (r := instance.get_run_by_id(run_id)) and r.is_finished else None)
    assert run.status is dg.DagsterRunStatus.SUCCESS
    gold = metadata(instance.get_latest_materialization_event(dg.AssetKey(["gold", "pageviews"])))
    assert gold["epoch"] >= 1 and gold["dagster/row_count"] == 20
    assert list(Path(str(gold["path"])).glob("*.parquet"))


def test_a_second_one_on_the_same_home_says_where_the_first_is(ui: Ui) -> None:
    done = subprocess.run(ui.command(), cwd=ROOT, env=ui.environment(), capture_output=True, text=True, timeout=180)
    assert done.returncode == 1 and ui.url in done.stderr


def test_it_ends_without_leaving_a_process_the_job_goes_on_and_the_next_start_remembers(ui: Ui) -> None:
    client = JobClient(str(ui.store), "pageviews")
    generation = client.status().generation
    with dg.DagsterInstance.from_config(str(ui.home)) as instance:
        (observed,) = instance.fetch_observations(DRILLS, limit=1).records
    assert observed.asset_observation is not None
    link = str(observed.asset_observation.metadata["data_docs"].value)
    ui.stop(signal.SIGHUP)  # the terminal was closed
    assert client.status().generation == generation, "the job outlives the UI"
    ui.take_another_port()
    ui.start()
    time.sleep(5)
    assert "under way" not in ui.output.read_text(), "nothing is started or drilled a second time"
    with dg.DagsterInstance.from_config(str(ui.home)) as instance:
        assert instance.get_latest_materialization_event(DRILLS) is not None
        assert len(instance.get_runs(dg.RunsFilter(job_name="pageviews_drill"))) == 1
    assert httpx.get(ui.url + link, timeout=60, follow_redirects=True).status_code == 200, "old links lead there, too"
    ui.stop()


def test_the_daemon_of_one_that_was_killed_keeps_the_next_one_out_and_ends(ui: Ui) -> None:
    ui.start()
    groups = ui.children()
    daemon = next(pid for pid in groups if "dagster-daemon" in Path(f"/proc/{pid}/cmdline").read_text())
    os.kill(daemon, signal.SIGSTOP)  # so that it can't end before the next one looks
    ui.process.kill()
    ui.process.wait()
    done = subprocess.run(ui.command(), cwd=ROOT, env=ui.environment(), capture_output=True, text=True, timeout=180)
    assert done.returncode == 1 and "running already" in done.stderr and ui.url in done.stderr
    os.kill(daemon, signal.SIGCONT)

    def gone() -> bool | None:
        return None if any(session_processes(group) for group in groups) else True

    eventually("code server, webserver and daemon end", gone, 120)
