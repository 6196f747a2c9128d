"""The interface over HTTP, without Spark: what it answers, and that docs/rest.md says the same."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from engine.host.rehearsal_request import AskedRehearsal
from engine.host.upgrade_request import AskedUpgrade
from engine.observe.http import ROUTES, make_app
from engine.observe.metrics import CONTENT_TYPE, exposition
from tests.observe.answering import AnsweringRun, long_job

DOCS = Path(__file__).resolve().parents[2] / "docs" / "rest.md"
TOKEN = {"authorization": "Bearer secret"}


@pytest.fixture
def run(tmp_path: Path) -> AnsweringRun:
    """A job in the middle of its life: two checkpoints, one restart, heartbeats."""
    made = AnsweringRun(tmp_path)
    made.run(until=lambda: bool(made.timeline.checkpoints) and made.timeline.checkpoints[0].checkpoint == 2)
    made.beat()
    made.run(until=lambda: made.master.stats.checkpoints_completed == 2)
    made.beat()
    return made


def ask(
    run: AnsweringRun, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: Any = None
) -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(make_app("secret", run))
        async with httpx.AsyncClient(transport=transport, base_url="http://job") as client:
            return await client.request(method, path, headers=TOKEN if headers is None else headers, json=body)

    return asyncio.run(call())


def documented() -> dict[str, str]:
    """The example of each route."""
    parts = re.split(r"^## `(.+)`$", DOCS.read_text(), flags=re.MULTILINE)[1:]
    return {
        route: re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
        for route, text in zip(parts[::2], parts[1::2], strict=True)
    }


def shape(value: Any) -> Any:
    """The keys of an answer, and of what is in its lists."""
    if isinstance(value, list):
        return [shape(value[0])] if value and isinstance(value[0], dict) else []
    return sorted(value)


@pytest.mark.promise("F1")
def test_every_route_is_documented_and_every_documented_route_is_there(run: AnsweringRun) -> None:
    assert list(documented()) == list(ROUTES) == list(ask(run, "/").json()["routes"])


@pytest.mark.promise("F1", "F3")
@pytest.mark.parametrize(
    ("route", "path"),
    [
        ("GET /job", "/job"),
        ("GET /job/vertices/{id}", "/job/vertices/pv"),
        ("GET /checkpoints", "/checkpoints"),
        ("GET /checkpoints/{id}", "/checkpoints/1"),
        ("GET /restarts", "/restarts"),
        ("GET /events", "/events"),
        ("GET /upgrade", "/upgrade"),
        ("POST /upgrade", "/upgrade"),
        ("GET /rehearsal", "/rehearsal"),
        ("POST /rehearsal", "/rehearsal"),
        ("GET /state/{uid}", "/state/pv?key=b"),
        ("POST /checkpoints", "/checkpoints"),
        ("POST /gc", "/gc"),
        ("GET /rescales", "/rescales"),
        ("POST /rescale", "/rescale"),
        ("POST /cancel", "/cancel"),
    ],
)
def test_answers_have_the_fields_that_are_documented(run: AnsweringRun, route: str, path: str) -> None:
    if route == "GET /rescales":
        ask(run, "/rescale", "POST", body={"parallelism": 3})
    answer = ask(run, path, route.split()[0], body={"operators": {"pv": 1}} if route == "POST /rescale" else None)
    assert answer.is_success
    example = json.loads(documented()[route])
    assert shape(example) == shape(answer.json())
    for name in ("vertices", "subtasks", "checkpoints") if isinstance(example, dict) else ():
        if example.get(name) and isinstance(example[name], list):
            assert shape(example[name]) == shape(answer.json()[name]), name


def test_checkpoints_come_newest_first_and_by_pages(run: AnsweringRun) -> None:
    def numbers(query: str) -> list[int]:
        return [c["checkpoint"] for c in ask(run, f"/checkpoints{query}").json()["checkpoints"]]

    assert numbers("") == [2, 1] and numbers("?limit=1") == [2] and numbers("?limit=1&offset=1") == [1]
    assert ask(run, "/checkpoints?limit=0").json() == {"total": 2, "checkpoints": []}


@pytest.mark.parametrize(
    ("method", "path", "code", "says"),
    [
        ("GET", "/nothing", 404, "there is no GET /nothing"),
        ("DELETE", "/job", 405, "there is no DELETE /job"),
        ("GET", "/job/vertices/nobody", 404, "no vertex 'nobody'; GET /job lists them"),
        ("GET", "/checkpoints/99", 404, "checkpoint 99 is not remembered"),
        ("GET", "/checkpoints/last", 400, "by its number, not 'last'"),
        ("GET", f"/checkpoints/{'9' * 5000}", 400, "by its number, not '9999"),
        ("GET", "/checkpoints/²", 400, "by its number, not '²'"),
        ("GET", f"/checkpoints?limit={'9' * 5000}", 400, "is not a number from 0 up"),
        ("GET", "/checkpoints?limit=-1", 400, "limit='-1' is not a number from 0 up"),
        ("GET", "/events?after_ms=now", 400, "after_ms='now'"),
    ],
)
def test_what_can_t_be_answered_says_why(run: AnsweringRun, method: str, path: str, code: int, says: str) -> None:
    answer = ask(run, path, method)
    assert answer.status_code == code and says in answer.json()["error"]
    if says.startswith("there is no"):
        assert answer.json()["routes"] == ROUTES


def test_no_browser_takes_an_answer_for_a_page(run: AnsweringRun) -> None:
    for path in ("/job/vertices/<script>alert(1)</script>", "/<script>", "/checkpoints/<script>", "/metrics"):
        answer = ask(run, path)
        assert "html" not in answer.headers["content-type"] and answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}])
def test_nothing_is_answered_without_the_token(run: AnsweringRun, headers: dict[str, str]) -> None:
    for path in ("/", "/job", "/metrics", "/nothing"):
        assert ask(run, path, headers=headers).status_code == 401
    assert ask(run, "/cancel", "POST", headers=headers).status_code == 401 and not run.cancelled


@pytest.mark.promise("E2", "F3")
def test_vertices_have_rates_shares_of_time_and_watermarks_by_subtask(run: AnsweringRun) -> None:
    vertex = ask(run, "/job/vertices/pv").json()
    assert [subtask["slot"] for subtask in vertex["subtasks"]] == [0, 1]
    for figures in (vertex, *vertex["subtasks"]):
        assert sum(figures[name] for name in ("busy", "back_pressured", "idle")) == pytest.approx(1, abs=0.01)
    assert vertex["rows_in"] == sum(subtask["rows_in"] for subtask in vertex["subtasks"])


_SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (-?[0-9.]+(?:e[+-]?[0-9]+)?)')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\["\\n])*)"')


def parse(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Prometheus' text format 0.0.4, strictly: each family once, HELP, TYPE and samples together, no sample twice."""
    families: dict[str, list[tuple[dict[str, str], float]]] = {}
    lines = text.split("\n")
    assert lines.pop() == "", "the last line ends too"
    current = ""
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("# HELP "):
            current = line.split(" ")[2]
            assert re.fullmatch(r"weir_[a-z_]+", current) and current not in families
            families[current] = []
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current and before.startswith("# HELP ")
            assert kind == ("counter" if name.endswith("_total") else "gauge")
        else:
            sample = _SAMPLE.fullmatch(line)
            assert sample is not None and sample[1] == current, line
            labels = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _LABEL.findall(sample[2])}
            assert labels not in [other for other, _ in families[current]]
            families[current].append((labels, float(sample[3])))
    assert all(families.values()), "a family without samples"
    return families


@pytest.mark.promise("F3")
def test_metrics_are_what_prometheus_reads(run: AnsweringRun) -> None:
    answer = ask(run, "/metrics")
    assert answer.headers["content-type"] == CONTENT_TYPE
    metrics = parse(answer.text)
    job = {"job": "test"}
    assert metrics["weir_job_running"] == [(job, 1)] and metrics["weir_slots_registered"] == [(job, 2)]
    assert metrics["weir_restarts_total"] == [(job, 1)] and metrics["weir_checkpoints_completed_total"] == [(job, 2)]
    assert metrics["weir_committed_rows"] == [({**job, "operator": "out"}, 2)]
    assert [labels for labels, _ in metrics["weir_rows_in_total"]] == [
        {**job, "vertex": vertex, "subtask": subtask} for vertex, subtask in (("views", "0"), ("pv", "0"), ("pv", "1"))
    ]
    for name in ("weir_last_checkpoint_state_bytes", "weir_busy_ratio", "weir_watermark_lag_seconds"):
        assert metrics[name]
    documented_names = set(re.findall(r"^(weir_\w+)", documented()["GET /metrics"], re.MULTILINE))
    assert documented_names <= metrics.keys()


def test_names_of_operators_are_escaped_in_labels(run: AnsweringRun) -> None:
    odd = 'a "b"\\c'
    status = msgspec.structs.replace(run.status(), committed_rows={odd: 1})
    assert parse(exposition(status).decode())["weir_committed_rows"] == [({"job": "test", "operator": odd}, 1)]


@pytest.mark.promise("F1", "D7", "H6")
def test_a_rescale_is_begun_over_http_and_listed_with_its_pause_and_its_proof(tmp_path: Path) -> None:
    run = AnsweringRun(tmp_path, long_job)
    run.run(until=lambda: run.master.stats.checkpoints_completed == 1)
    begun = ask(run, "/rescale", "POST", body={"operators": {"pv": 3}})
    assert begun.status_code == 202
    (under_way,) = ask(run, "/rescales").json()
    assert under_way["rescale"] == begun.json()["rescale"] and under_way["state"] == "waiting for slots"
    assert ask(run, "/rescale", "POST", body={"parallelism": 1}).status_code == 409
    assert ask(run, "/job").json()["rescales"]["under_way"] == "waiting for slots"
    run.run(until=lambda: bool(run.rescales))
    (done,) = ask(run, "/rescales").json()
    assert done["state"] == "completed" and done["digest_before"] == done["digest_after"] != ""
    assert (done["from"]["pv"], done["to"]["pv"], done["slots_after"]) == (2, 3, 3)
    assert ask(run, "/rescale", "POST", body={"operators": {"pv": 3}}).json() == {"rescale": None}
    metrics = parse(ask(run, "/metrics").text)
    assert metrics["weir_rescales_completed_total"][0][1] == 1
    assert metrics["weir_last_rescale_pause_seconds"][0][1] == done["pause_ms"] / 1000


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"operators": {"pw": 3}}, "did you mean 'pv'?"),
        ({"parallelism": 500}, "more than max_parallelism"),
        ({"parallelism": "three"}, "the body is not"),
        ({"paralelism": 3}, "the body is not"),
        ([3], "the body is not"),
        ({}, "say which parallelism"),
        ({"operators": {"pv" * 40_000: 3}}, "the body is not"),
    ],
    ids=["unknown uid", "too many", "a text", "a wrong field", "a list", "nothing", "too large"],
)
def test_a_rescale_that_can_t_be_is_refused_and_the_job_goes_on(run: AnsweringRun, body: Any, says: str) -> None:
    answer = ask(run, "/rescale", "POST", body=body)
    assert answer.status_code == 400 and says in answer.json()["error"]
    assert ask(run, "/rescales").json() == [] and run.status().running


@pytest.mark.promise("D8", "F1")
def test_an_upgrade_is_asked_for_over_http_with_the_options_of_the_command(run: AnsweringRun) -> None:
    body = {"to": "job:v2", "params": {"rate": "50"}, "parallelism": 3, "allow_non_restored_state": True}
    begun = ask(run, "/upgrade", "POST", body=body | {"timeout_s": 60, "dry_run": True})
    assert begun.status_code == 202 and begun.json() == {"upgrade": "1f", "see": "/upgrade"}
    assert run.asked_upgrades == [AskedUpgrade("job:v2", {"rate": "50"}, 3, True, 60, True)]
    second = ask(run, "/upgrade", "POST")
    assert second.status_code == 409 and "another upgrade" in second.json()["error"]
    assert run.asked_upgrades[1] == AskedUpgrade()


@pytest.mark.parametrize(
    "body",
    [{"to": 3}, {"to": ""}, {"path": "job:v2"}, {"parallelism": 0}, {"params": {"rate": 50}}, {"timeout_s": 0}, [3]],
    ids=["a number", "empty", "a wrong field", "too few", "no text", "no time", "a list"],
)
def test_an_upgrade_that_is_asked_for_wrongly_is_a_400_and_not_begun(run: AnsweringRun, body: Any) -> None:
    answer = ask(run, "/upgrade", "POST", body=body)
    assert answer.status_code == 400 and "the body is not like" in answer.json()["error"]
    assert run.asked_upgrades == []


@pytest.mark.promise("F1")
def test_a_cancel_that_can_not_be_written_down_is_refused_and_the_job_goes_on(run: AnsweringRun) -> None:
    run.full = True
    answer = ask(run, "/cancel", "POST")
    assert answer.status_code == 409 and "can't be written" in answer.json()["error"] and not run.cancelled
    run.full = False
    assert ask(run, "/cancel", "POST").status_code == 202 and run.cancelled


@pytest.mark.promise("F1", "H7")
def test_a_rehearsal_is_asked_for_over_http_with_the_options_of_the_command(run: AnsweringRun) -> None:
    body = {"to": "job:v2", "checkpoints": 9, "params": {"rate": "50"}, "parallelism": 3}
    begun = ask(run, "/rehearsal", "POST", body=body | {"allow_non_restored_state": True})
    assert begun.status_code == 202 and begun.json() == {"rehearsal": "2e", "see": "/rehearsal"}
    assert run.asked_rehearsals == [AskedRehearsal("job:v2", {"rate": "50"}, 3, True, 9)]
    second = ask(run, "/rehearsal", "POST")
    assert second.status_code == 409 and "another rehearsal" in second.json()["error"]
    assert run.asked_rehearsals[1] == AskedRehearsal() and AskedRehearsal().checkpoints == 5


@pytest.mark.promise("F1", "H7")
@pytest.mark.parametrize("body", [{"checkpoints": 0}, {"checkpoints": "5"}, {"to": ""}, {"rehearse": 5}, ["job:v2"]])
def test_a_rehearsal_that_is_asked_for_wrongly_is_a_400_and_not_begun(run: AnsweringRun, body: Any) -> None:
    answer = ask(run, "/rehearsal", "POST", body=body)
    assert answer.status_code == 400 and 'is not like {"to": "MODULE:FUNCTION", "checkpoints"' in answer.json()["error"]
    assert run.asked_rehearsals == []
