"""The pages under docs/: examples run, files and links that they name exist, promises that tests name are listed."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import engine.api
import engine.testing
from engine.api import (
    DataStream,
    KeyedStream,
    OutputTag,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowedStream,
    count,
)
from engine.connectors.table import TableSink
from engine.testing import Checkpoint, Item, ListSource, Wait, run
from tests.pages import check_commands, commands
from tests.promises import PROMISES, listed_promises
from tests.runtime.patterns.running import matches

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / "docs" / "state.md"
JOBS = ROOT / "docs" / "jobs.md"
JOINS = ROOT / "docs" / "joins.md"
WINDOWS = ROOT / "docs" / "windows.md"
AGGREGATES = ROOT / "docs" / "aggregates.md"
PATTERNS = ROOT / "docs" / "patterns.md"
PROCESS_FUNCTIONS = ROOT / "docs" / "process-functions.md"
NOT_FOR_JOBS = {"build", "execute", "execute_async", "parallelism", "restart", "scalable"}
"""Methods of the environment that run a job (docs/spark.md) or that Weir itself uses."""
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"`((?:engine|tests|checks|orchestration|assets|benchmarks|docs)/[\w./-]*)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """Returns the text of a page without its fenced examples."""
    return _FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def promised_ids(path: Path) -> Iterator[str]:
    """Yields the ids of all promise markers in a file of tests."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "promise":
            yield from (str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


def test_the_examples_of_the_page_on_state_do_what_it_says() -> None:
    examples = re.findall(r"```python\n(.*?)```", STATE.read_text(), re.DOTALL)

    def job(env: StreamEnvironment) -> None:
        known: dict[str, Any] = {**vars(engine.api), "pa": pa, "env": env}
        known["JsonSource"] = lambda path, watch: ListSource([{"app": "a", "limit": 2}])
        numbers = ListSource([{"n": n, "key": "a"} for n in range(250)])
        known["stream"] = env.from_source(numbers, "n long, key string", uid="numbers")
        known["events"] = env.from_source(ListSource([{"app": "a"}] * 5), "app string", uid="events")
        for number, example in enumerate(examples):
            definitions, stream = example.rstrip().rsplit("\n", 1)
            exec(definitions, known)
            eval(stream, known).sink_to(TableSink(str(number)), uid=f"out {number}")

    result = run(job)
    assert result.rows("0")[-1] == {"key": "a", "seen": 250}
    assert result.rows("1")[-1] == {"ten": 24, "seen": 10, "mean": 124.5}
    assert {row["_map_value"] for row in result.state("per ten", "tens")} == {10}
    assert [row["n"] for row in result.rows("2")] == [0]
    assert [row["batch"] for row in result.rows("3")] == [list(range(100)), list(range(100, 200))]
    assert result.rows("4") == [{"app": "a", "seen": seen} for seen in (3, 4, 5)]


def test_the_examples_of_the_page_on_process_functions_do_what_it_says() -> None:
    *examples, story = re.findall(r"```python\n(.*?)```", PROCESS_FUNCTIONS.read_text(), re.DOTALL)
    exec(story, {**vars(engine.api), **vars(engine.testing), "TableSink": TableSink})

    def job(env: StreamEnvironment) -> None:
        known: dict[str, Any] = {**vars(engine.api), "env": env}
        events = [("order", 1, 0), ("order", 2, 60), ("pay", 1, 600), ("order", 3, 2000), ("pay", 3, 2010)]
        rows = [{"what": what, "order": order, "at": 1000 * at} for what, order, at in events]
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
        timed = env.from_source(ListSource(rows), "what string, order long, at long", uid="timed")
        known["timed"] = timed.assign_timestamps_and_watermarks(strategy)
        rows = [{"order": n, "customer": n % 2, "cents": 5_000 * n} for n in range(5)]
        known["orders"] = env.from_source(ListSource(rows), "order long, customer long, cents long", uid="orders")
        names = [{"id": 0, "name": "ann"}, {"id": 1, "name": "bob"}]
        known["customers"] = env.from_source(ListSource(names), "id long, name string", uid="customers")
        for number, example in enumerate(examples):
            definitions, stream = example.rstrip().rsplit("\n", 1)
            exec(definitions, known)
            eval(stream, known).sink_to(TableSink(str(number)), uid=f"out {number}")
        known["routed"].sink_to(TableSink("routed"), uid="routed")

    result = run(job)
    assert result.rows("0") == [{"order": 2, "due": 960_000}]
    assert [row["order"] for row in result.rows("1")] == [3, 4]
    assert [row["order"] for row in result.rows("routed")] == [0, 1, 2]
    assert sorted((row["customer"], row["cents"]) for row in result.rows("2")) == [
        *(("ann", cents) for cents in (0, 10_000, 20_000)),
        *(("bob", cents) for cents in (5_000, 15_000)),
    ]


def test_the_examples_of_the_page_on_joins_do_what_it_says() -> None:
    examples = re.findall(r"```python\n(.*?)```", JOINS.read_text(), re.DOTALL)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    orders = [(1, "ann", 500, 0), (2, "bob", 700, 30), (3, "ann", 100, 50), (4, "cat", 900, 3600)]
    payments = [(1, 500, 10), (2, 600, 50), (2, 100, 400), (3, 100, 45), (1, 1, 3000), (9, 5, 3601)]

    def job(env: StreamEnvironment) -> None:
        known: dict[str, Any] = {**vars(engine.api), "env": env}
        known["ORDERS"] = ListSource(
            [{"id": n, "customer": who, "cents": c, "at": begin + timedelta(seconds=s)} for n, who, c, s in orders]
        )
        known["PAYMENTS"] = ListSource(
            [{"order": n, "cents": c, "at": begin + timedelta(seconds=s)} for n, c, s in payments]
        )
        for example in examples:
            exec(example, known)
        for name in ("paid", "delays", "checked", "late_payments", "per_minute", "visits", "outer"):
            known[name].sink_to(TableSink(name), uid=f"out {name}")

    result = run(job)
    assert sorted(tuple(row.values()) for row in result.rows("paid")) == [
        (1, "ann", 500, 500),
        (2, "bob", 700, 100),
        (2, "bob", 700, 600),
        (3, "ann", 100, 100),
    ]
    assert result.rows("delays") == [{"id": 1, "seconds": 10}]
    assert sorted(row["id"] for row in result.rows("checked")) == [1, 2, 2]
    assert result.rows("late_payments") == []
    assert sorted((row["id"], row["cents_right"]) for row in result.rows("per_minute")) == [
        (1, 500),
        (2, 600),
        (3, 100),
    ]
    assert {row["window_start"] for row in result.rows("per_minute")} == {begin}
    visits = {(row["id"], row["cents_right"]): row["window_end"] for row in result.rows("visits")}
    assert visits == {
        (1, 500): begin + timedelta(seconds=310),
        (2, 600): begin + timedelta(seconds=350),
        (3, 100): begin + timedelta(seconds=350),
    }
    paid = sorted((row["id"], row["paid"]) for row in result.rows("outer"))
    assert paid == [(1, 501), (2, 700), (3, 100), (4, 0)]


def job_of_clicks(examples: list[str], clicks: list[tuple[str, str, int, int]]) -> Callable[[StreamEnvironment], None]:
    """Returns a job whose clicks go through the examples of a page. The last line of each is a stream of results."""

    def job(env: StreamEnvironment) -> None:
        rows = [{"user": user, "page": page, "ms": ms, "at": 1000 * at} for user, page, ms, at in clicks]
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
        stream = env.from_source(ListSource(rows), "user string, page string, ms long, at long", uid="clicks")
        known: dict[str, Any] = {**vars(engine.api), "clicks": stream.assign_timestamps_and_watermarks(strategy)}
        for number, example in enumerate(examples):
            definitions, results = example.rstrip().rsplit("\n", 1)
            exec(definitions, known)
            eval(results, known).sink_to(TableSink(str(number)), uid=f"out {number}")
        known["counts"].sink_to(TableSink("counts"), uid="counts out")

    return job


def test_the_examples_of_the_page_on_windows_do_what_it_says() -> None:
    examples = re.findall(r"```python\n(.*?)```", WINDOWS.read_text(), re.DOTALL)
    clicks = [("ann", "home", 100, 0), ("ann", "shop", 2000, 20), ("bob", "home", 300, 50), ("ann", "home", 200, 130)]
    clicks += [
        ("ann", "home", 800, 4000),
        ("bob", "shop", 400, 4010),
        ("bob", "home", 500, 65),
        ("eve", "home", 1, 3950),
    ]

    result = run(job_of_clicks(examples, clicks))
    assert sorted((row["user"], row["clicks"], row["ms"]) for row in result.rows("0")) == [
        *(("ann", 1, 1_800_000), ("ann", 3, 1_930_000), ("bob", 1, 1_800_000), ("bob", 1, 1_800_000)),
        ("eve", 1, 1_800_000),
    ], "the click at 65 s is late: all sessions before 2,210 s are over"
    assert {"page": "home", "until": 120_000, "mean": 200.0} in result.rows("1")
    slowest = sorted((row["page"], row["ms"]) for row in result.rows("2"))
    assert slowest == [("home", 300), ("home", 800), ("shop", 400), ("shop", 2000), ("shop", 2000)], "once early"
    assert [row["ms"] for row in result.rows("3") if row["user"] == "ann"] == [100, 2100, 2300, 3000]
    assert [(row["user"], row["at"]) for row in result.rows("4")] == [("bob", 65_000)]
    assert ("home", 3_960_000, 1.0) in [(row["page"], row["until"], row["mean"]) for row in result.rows("counts")]


def test_the_examples_of_the_page_on_aggregates_do_what_it_says() -> None:
    examples = re.findall(r"```python\n(.*?)```", AGGREGATES.read_text(), re.DOTALL)
    clicks = [("ann", "home", 100, 0), ("ann", "shop", 200, 20), ("bob", "home", 300, 50), ("bob", "home", 400, 55)]
    clicks += [("ann", "home", 500, 4000), ("eve", "shop", 600, 60)]

    result = run(job_of_clicks(examples, clicks))
    (home,) = [row for row in result.rows("0") if (row["page"], row["views"]) == ("home", 3)]
    assert home["users"] == 2 and home["slowest"] == [{"ms": 400, "user": "bob"}, {"ms": 300, "user": "bob"}]
    assert home["p99"] == pytest.approx(300, rel=0.01), "the value at rank 0.99 * 2, rounded down"
    sessions = sorted((row["user"], row["clicks"], row["began"], row["ended"]) for row in result.rows("1"))
    assert sessions == [("ann", 1, "home", "home"), ("ann", 2, "home", "shop"), ("bob", 2, "home", "home")]
    assert result.rows("2") == [], "windows by the clock that are open at the end do not fire"
    (three,) = result.rows("3")
    assert three == {"user": "ann", "ms": 800, "slowest": [{"ms": 500, "page": "home"}]}
    so_far = [(row["page"], row["views"], row["users"]) for row in result.rows("4")]
    assert ("home", 1, 1) in so_far and max(so_far) == ("shop", 2, 2) and ("home", 4, 2) in so_far
    assert [row["user"] for row in result.rows("5")] == ["eve"]
    assert sum(row["views"] for row in result.rows("counts")) == 5


def test_the_examples_of_the_page_on_patterns_find_what_it_says() -> None:
    examples = re.findall(r"```python\n(.*?)```", PATTERNS.read_text(), re.DOTALL)
    clicks = ["login", "order", "pay", "login", "look", "order", "pay"]
    celsius = [20.0, 21.0, 22.0, 23.0, 24.0, 23.0, 24.0]
    streams = {
        "logins": [{"user": "ann", "ok": ok} for ok in (True, False, False, False, True)],
        "payments": [{"card": 1, "amount": amount} for amount in (0.5, 600.0, 0.5, 3.0, 700.0)],
        "clicks": [{"user": "ann", "what": what} for what in clicks],
        "orders": [
            {"order": 1, "what": "order", "at": 0},
            {"order": 2, "what": "order", "at": 60_000},
            {"order": 1, "what": "pay", "at": 600_000},
            {"order": 2, "what": "pay", "at": 960_000},
        ],
        "readings": [{"sensor": 1, "celsius": value, "at": 250 * n} for n, value in enumerate(celsius)],
        "digits": [{"text": 1, "digit": digit} for digit in "1001"],
    }
    schemas = {
        "logins": "user string, ok boolean",
        "payments": "card long, amount double",
        "clicks": "user string, what string",
        "orders": "order long, what string",
        "readings": "sensor long, celsius double",
        "digits": "text long, digit string",
    }

    def job(env: StreamEnvironment) -> None:
        known: dict[str, Any] = {**vars(engine.api), "env": env}
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
        for name, rows in streams.items():
            timed = ListSource([{"at": n, **row} for n, row in enumerate(rows)])
            stream = env.from_source(timed, f"{schemas[name]}, at long", uid=name)
            known[name] = stream.assign_timestamps_and_watermarks(strategy)
        for number, example in enumerate(examples):
            definitions, stream = example.rstrip().rsplit("\n", 1)
            exec(definitions, known)
            eval(stream, known).sink_to(TableSink(str(number)), uid=f"out {number}")
        known["paid"].sink_to(TableSink("paid"), uid="out paid")

    result = run(job)
    assert result.rows("0") == [{"user": "ann", "since": 1, "until": 3}]
    assert [row["amount"] for row in result.rows("1")] == [600.0]
    assert [row["at"] for row in result.rows("2")] == [2]
    assert result.rows("3") == [{"order": 2, "due": 960_000}]
    assert result.rows("paid") == [{"order": 1, "paid": 600_000}]
    assert [row["at"] for row in result.rows("4")] == [0]
    assert [row["even"] for row in result.rows("5")] == [True, False, True, True]


@pytest.mark.filterwarnings("ignore:pattern .* has no limit")
def test_the_matches_that_the_page_on_patterns_lists_are_those_of_the_patterns() -> None:
    (table,) = re.findall(r"^\| \| matches \|\n\|---\|---\|\n((?:\|.*\n)+)", PATTERNS.read_text(), re.MULTILINE)
    rows = [row.strip("|").split("|") for row in table.splitlines()]
    first = rows[0][0].strip(" `")
    for pattern, listed in rows:
        code = pattern.strip(" `")
        code = first.replace(".one_or_more()", ".one_or_more().consecutive()") if "…" in code else code
        for name in "bc":
            code = code.replace(f'"{name}")', f'"{name}").where(lambda r: r["letter"] == "{name}")')
        made = eval(f'Pattern.begin("a").where(lambda r: r["letter"] == "a").{code}', vars(engine.api))
        assert matches(made, "a b1 d b2 c") == sorted(one.strip(" `") for one in listed.split(",")), code


def test_the_job_of_the_page_on_jobs_writes_the_table_that_it_says() -> None:
    module = next(re.finditer(r"```python\n(from engine.api.*?)```", JOBS.read_text(), re.DOTALL))[1]
    known: dict[str, Any] = {}
    exec(module, known)
    rows = run(known["job"]).rows("spent")
    assert sorted((row["customer"], row["orders"], row["cents"]) for row in rows) == [
        ("ann", 1, 100),
        ("ann", 2, 625),
        ("bob", 1, 250),
    ]


def test_the_generators_of_the_page_on_jobs_make_the_watermarks_that_it_says() -> None:
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", JOBS.read_text(), re.DOTALL) if "ByMarkers" in block
    )
    known: dict[str, Any] = {}
    exec(code, known)
    late = OutputTag("late", "kind string, at long")
    views: list[Item] = [
        {"kind": "view", "at": 1000},
        {"kind": "day closed", "at": 15_000},
        {"kind": "view", "at": 2000},
        Wait("1 h"),
        {"kind": "view", "at": 16_000},
    ]

    def late_by(strategy: str) -> list[int]:
        def job(env: StreamEnvironment) -> None:
            stream = env.from_source(ListSource(views), "kind string, at long", uid="views")
            timed = stream.assign_timestamps_and_watermarks(known[strategy])
            windows = timed.key_by("kind").window(TumblingEventTimeWindows.of("10 s")).side_output_late_data(late)
            counts = windows.aggregate(n=count(), uid="counts")
            counts.print(uid="counted")
            counts.get_side_output(late).sink_to(TableSink("late"), uid="late")

        return sorted(row["at"] for row in run(job).rows("late"))

    assert (late_by("by_markers"), late_by("by_clock")) == ([2000], [2000, 16_000])


def test_the_page_on_jobs_names_every_method_of_the_streams() -> None:
    page = JOBS.read_text()
    for kind in (StreamEnvironment, DataStream, KeyedStream, WindowedStream):
        methods = {name for name in vars(kind) if not name.startswith("_")} - NOT_FOR_JOBS
        missing = [name for name in methods if not re.search(rf"`(env\.)?{name}\b", page)]
        assert not missing, f"docs/jobs.md does not name {missing} of {kind.__name__}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_that_a_page_names_exist(page: Path) -> None:
    missing = [path for path in _PATH.findall(prose(page)) if not (ROOT / path).exists()]
    assert not missing, f"{page_id(page)} names files that do not exist: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_between_pages_resolve(page: Path) -> None:
    broken = []
    for link in _LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken, f"{page_id(page)} has broken links: {broken}"


def test_promises_that_tests_carry_are_listed() -> None:
    listed = listed_promises(PROMISES.read_text())
    assert len(listed) == len(set(listed)) > 50, "an id is listed twice, or the page has lost its list"
    unknown = {
        f"{page_id(path)}: {promise}"
        for path in (ROOT / "tests").rglob("*.py")
        for promise in promised_ids(path)
        if promise not in listed
    }
    assert not unknown, f"docs/promises.md does not list: {sorted(unknown)}"


def test_the_example_of_the_page_on_upgrades_gives_saved_state_its_default() -> None:
    """The state of the first version has one field, and a shorter one."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "upgrades.md").read_text(), re.DOTALL)
    first = example.replace("struct<visits: long, plan: string>", "struct<visits: int>")
    first = first.replace(', defaults={"plan": "free"}', "").replace(', "plan": "free"', "")
    source = ListSource([{"user": "a"}, Checkpoint(), {"user": "a"}])

    def version(code: str, schema: str) -> Callable[[StreamEnvironment], None]:
        def job(env: StreamEnvironment) -> None:
            known: dict[str, Any] = dict(vars(engine.api))
            exec(code, known)
            visits = env.from_source(source, "user string", uid="users").key_by("user")
            visits.process(known["Visits"](), uid="visits", schema=schema).sink_to(TableSink("out"), uid="out")

        return job

    before = run(version(first, "user string, visits long"), until=lambda started: started.epochs >= 1)
    rows = run(version(example, "user string, visits long, plan string"), after=before).rows("out")
    assert rows == [{"user": "a", "visits": 0, "plan": None}, {"user": "a", "visits": 1, "plan": "free"}]


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "runbooks").glob("*.md")), ids=page_id)
def test_the_commands_of_a_runbook_are_those_of_weir_and_it_fits_on_a_page(page: Path) -> None:
    found = commands(page)
    assert found and len(page.read_text().splitlines()) <= 60
    check_commands(found)


def test_every_runbook_says_the_same_things_and_is_linked() -> None:
    pages = sorted((ROOT / "docs" / "runbooks").glob("*.md"))
    parts = ["By CLI", "Over REST", "In Dagster", "How to see that it worked", "What to do when it did not"]
    for page in pages:
        text = page.read_text()
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == parts, page_id(page)
        assert "**When.**" in text and "**Before you begin.**" in text, page_id(page)
        for linking in (ROOT / "README.md", ROOT / "docs" / "operations.md"):
            assert f"runbooks/{page.name}" in linking.read_text(), f"{page_id(linking)} does not link {page.name}"


def test_each_name_that_authors_import_has_its_page_of_the_api_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make docs` has a virtualenv of its own with MkDocs, which this function does not need."""
    files = ModuleType("mkdocs.structure.files")
    files.File = object  # type: ignore[attr-defined]
    for name, module in {
        "mkdocs": ModuleType("mkdocs"),
        "mkdocs.structure": ModuleType("m"),
        files.__name__: files,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    pages = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["api_pages"]()
    text = "\n".join(pages.values())
    assert [name for name in engine.api.__all__ if f".{name}\n" not in text] == []
    shown = (ROOT / "mkdocs.yml").read_text()
    assert [title for title in pages if f"api/{title.lower().replace(' ', '-')}.md" not in shown] == []
