"""Goal: incidents of a job reach a webhook once each, on a real HTTP server; what could not be sent is sent later."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import dagster as dg
import msgspec
import pytest

from engine.host.run_folder import MasterExit
from engine.jobmaster.actions import Outcome
from engine.jobmaster.events import AnyEvent, AttemptFailed, Claimed, Running
from engine.observe.client import JobClient
from orchestration.alerts import WEBHOOK
from tests.orchestration.jobs import NUMBERS, FakeJob, Ticker, now_ms
from tests.seen import running


class Webhook:
    """A server that keeps what is posted to it. `status` is what it answers."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if outer.status == 200:
                    outer.texts.append(body["text"])
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/secret-path"

    def take(self) -> list[str]:
        taken, self.texts = self.texts, []
        return taken


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    made = Webhook()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    monkeypatch.setenv(WEBHOOK, made.url)
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJob:
    monkeypatch.setattr(JobClient, "status", lambda self: running("numbers"))
    made = FakeJob(tmp_path)
    made.wanted()
    made.beats()
    note(made, Claimed(at_ms=now_ms() - 3_600_000, generation=1))
    return made


def note(job: FakeJob, event: AnyEvent) -> None:
    job.writes(msgspec.json.encode(event).decode() + "\n")


def starts(job: FakeJob, start: str) -> None:
    job.launch = msgspec.structs.replace(job.launch, id=start)
    job.wanted()
    job.beats()


def loses_a_slot(job: FakeJob, recovery_ms: int = 10) -> None:
    at_ms = now_ms() - recovery_ms
    note(job, AttemptFailed(attempt="1.1", cause="slot_lost", detail="pid 7", at_ms=at_ms, generation=1))
    note(job, Running(attempt="1.2", at_ms=at_ms + recovery_ms, generation=1))


class Alerting:
    def __init__(self, store: Path, instance: dg.DagsterInstance) -> None:
        self._ticker = Ticker(store, instance, "numbers_alerts")

    def tick(self) -> str:
        """Returns what the tick says."""
        said = self._ticker.tick().skip_message
        assert isinstance(said, str)
        return said


@pytest.fixture
def alerting(job: FakeJob, webhook: Webhook, instance: dg.DagsterInstance) -> Alerting:
    made = Alerting(job.store, instance)
    made.tick()
    assert webhook.take() == []
    return made


def test_a_failed_job_is_one_message_and_its_next_start_another(
    job: FakeJob, webhook: Webhook, alerting: Alerting
) -> None:
    starts(job, "first")
    job.folder.write_exit(MasterExit(Outcome.FAILED, "map raised ZeroDivisionError"), job.launch)
    for _ in range(3):
        alerting.tick()
    assert webhook.take() == ["[weir] numbers: the job failed: map raised ZeroDivisionError (see: weir logs numbers)"]
    starts(job, "second")
    for _ in range(3):
        alerting.tick()
    (over,) = webhook.take()
    assert over.startswith("[weir] numbers: over after ") and over.endswith(": the job failed")


def test_a_restart_loop_names_the_cause_and_the_command_that_shows_more(
    job: FakeJob, webhook: Webhook, alerting: Alerting
) -> None:
    for _ in range(2):
        loses_a_slot(job)
    alerting.tick()
    assert webhook.take() == []
    loses_a_slot(job)
    alerting.tick()
    alerting.tick()
    (loop,) = webhook.take()
    assert "restart loop: 3 restarts within 10 min" in loop and "pid 7 (see: weir restarts numbers)" in loop


def test_a_slow_recovery_that_nobody_could_be_told_of_is_told_later(
    job: FakeJob, webhook: Webhook, alerting: Alerting
) -> None:
    """The webhook fails while the recovery is news; later it is over for long."""
    webhook.status = 503
    loses_a_slot(job, recovery_ms=90_000)
    for _ in range(2):
        said = alerting.tick()
    assert "1 could not be sent, and are tried again" in said and "answered 503" in said
    webhook.status = 200
    alerting.tick()
    alerting.tick()
    (slow,) = webhook.take()
    assert "slow recovery, over by now: it took 90 s" in slow


def test_an_address_that_can_not_be_reached_is_said_without_the_address(
    job: FakeJob, webhook: Webhook, alerting: Alerting, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.folder.write_exit(MasterExit(Outcome.FAILED, "bad"), job.launch)
    for url in ("http://127.0.0.1:1/secret-path", "no address: secret-path"):
        monkeypatch.setenv(WEBHOOK, url)
        said = alerting.tick()
        assert "can't be reached" in said and WEBHOOK in said and "secret" not in said
    monkeypatch.setenv(WEBHOOK, webhook.url)
    alerting.tick()
    assert len(webhook.take()) == 1


def test_without_an_address_nobody_is_alerted_and_the_tick_says_so(
    alerting: Alerting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WEBHOOK)
    assert alerting.tick() == "WEIR_ALERT_WEBHOOK is not set: nobody is alerted"


def test_a_job_that_was_never_started_is_no_incident(
    tmp_path: Path, webhook: Webhook, instance: dg.DagsterInstance
) -> None:
    assert "never started" in Alerting(tmp_path, instance).tick()
    assert webhook.take() == []


def test_a_red_check_of_a_drill_is_an_incident_until_it_passes_and_a_warning_is_none(
    webhook: Webhook, alerting: Alerting, instance: dg.DagsterInstance
) -> None:
    def report(name: str, *, passed: bool, severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR) -> None:
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=NUMBERS.drills_key,
                check_name=name,
                passed=passed,
                severity=severity,
                description="table pv: 2 rows are lost",
            )
        )

    report("no_stray_files", passed=False, severity=dg.AssetCheckSeverity.WARN)
    report("epochs_whole", passed=False)
    alerting.tick()
    alerting.tick()
    assert webhook.take() == ["[weir] numbers: red check drills/numbers epochs_whole: table pv: 2 rows are lost"]
    report("epochs_whole", passed=True)
    alerting.tick()
    (over,) = webhook.take()
    assert over.endswith(": red check drills/numbers epochs_whole")
