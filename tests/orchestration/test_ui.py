"""Goal: the parts of `make ui` that need no services work."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import dagster as dg
import httpx
import pytest

from orchestration.ui import HOST, forget_lost_runs, free_port, only_one, prepare_home, serve_data_docs
from tests.orchestration.jobs import definitions


def test_a_run_that_was_under_way_when_the_ui_was_killed_is_not_under_way_any_more(tmp_path: Path) -> None:
    job = definitions(tmp_path).resolve_job_def("numbers_cancel")
    with dg.DagsterInstance.ephemeral() as instance:

        def run(status: dg.DagsterRunStatus, tags: dict[str, str]) -> str:
            return instance.create_run_for_job(job, status=status, tags=tags).run_id

        launched = {".dagster/grpc_info": "{}"}
        lost = run(dg.DagsterRunStatus.STARTED, launched)
        of_a_command_line = run(dg.DagsterRunStatus.STARTED, {})
        waiting = run(dg.DagsterRunStatus.NOT_STARTED, {})
        forget_lost_runs(instance)
        statuses = {i: r.status for i in (lost, of_a_command_line, waiting) if (r := instance.get_run_by_id(i))}
    assert statuses == {
        lost: dg.DagsterRunStatus.CANCELED,
        of_a_command_line: dg.DagsterRunStatus.STARTED,
        waiting: dg.DagsterRunStatus.NOT_STARTED,
    }


def test_a_port_that_is_taken_is_not_the_end() -> None:
    with server_on_a_port_that_the_system_gives_to_nobody() as taken:
        port = taken.getsockname()[1]
        assert free_port(port) != port
    assert free_port(port) == port


def server_on_a_port_that_the_system_gives_to_nobody() -> socket.socket:
    """A port of the system's own range might be given to another process as soon as it is free."""
    for port in range(20_000, 30_000):
        with contextlib.suppress(OSError):
            return socket.create_server((HOST, port))
    raise AssertionError("all ports are taken")


def test_two_on_one_home_are_refused(tmp_path: Path) -> None:
    refused = pytest.raises(SystemExit, match="running already: http://first")
    with only_one(tmp_path, "http://first"), refused, only_one(tmp_path, "http://second"):
        pass
    with only_one(tmp_path, "http://second"):
        assert (tmp_path / "ui.lock").read_text() == "http://second"


def test_the_home_has_the_project_s_settings_also_after_they_changed(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: true}")
    prepare_home(tmp_path)
    assert "enabled: false" in (tmp_path / "dagster.yaml").read_text()


def test_the_pages_of_drills_and_rehearsals_are_served_and_nothing_else(tmp_path: Path) -> None:
    pages = ["drills/pageviews/1/data_docs/index.html", "rehearsals/pageviews/1/data_docs/index.html"]
    pages.append("drills/pageviews/report.html")
    others = ["drills/pageviews/records.jsonl", "rehearsals/pageviews/report.html", "drills/pageviews/1/report.html"]
    others += ["pageviews/run/token", "drills/pageviews/1/drill.json", "data_docs/x/y/z", "x/pageviews/1/data_docs/a"]
    for name in (*pages, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    url = serve_data_docs(str(tmp_path), free_port(), "http://127.0.0.1:1")
    run = httpx.get(f"{url}/runs/4711", timeout=60)
    assert (run.status_code, run.headers["location"]) == (302, "http://127.0.0.1:1/runs/4711"), "in the UI"
    assert [httpx.get(f"{url}/{name}", timeout=60).status_code for name in pages] == [200] * len(pages)
    hidden = [*others, "", "drills", "drills/pageviews/1/data_docs/../../../../pageviews/run/token"]
    assert {httpx.get(f"{url}/{name}", timeout=60).status_code for name in hidden} == {404}
