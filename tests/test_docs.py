"""The pages under docs/: examples run, files and links that they name exist, promises that tests name are listed."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer

import engine.api
import engine.testing
from engine.api import DataStream, KeyedStream, StreamEnvironment, WatermarkStrategy, WindowedStream
from engine.cli.main import add_commands, app
from engine.connectors.table import TableSink
from engine.testing import Checkpoint, ListSource, run
from tests.promises import PROMISES, listed_promises

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / "docs" / "state.md"
JOBS = ROOT / "docs" / "jobs.md"
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
    lines = page.read_text().splitlines()
    commands = [line.split()[1:] for line in lines if line.startswith(".venv/bin/weir ")]
    known = typer.Typer()
    known.registered_commands = list(app.registered_commands)
    add_commands(known)
    group: Any = typer.main.get_command(known)
    assert commands and len(lines) <= 60
    for words in commands:
        with group.make_context("weir", words) as context:
            name, command, rest = group.resolve_command(context, words)
            assert command is not None
            command.make_context(name, rest, parent=context).close()  # raises if there is no such option


def test_every_runbook_says_the_same_things_and_is_linked() -> None:
    pages = sorted((ROOT / "docs" / "runbooks").glob("*.md"))
    parts = ["By CLI", "Over REST", "In Dagster", "How to see that it worked", "What to do when it did not"]
    for page in pages:
        text = page.read_text()
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == parts, page_id(page)
        assert "**When.**" in text and "**Before you begin.**" in text, page_id(page)
        for linking in (ROOT / "README.md", ROOT / "docs" / "operations.md"):
            assert f"runbooks/{page.name}" in linking.read_text(), f"{page_id(linking)} does not link {page.name}"
