"""Goal: the ports of scripts of PyFlink and of Spark Structured Streaming compute what the originals have computed.

Topology: as each script says, on one subtask as the originals, and on two. Checks: the rows of all tables are those
that the original printed when `python -m tests.ports.record` ran it last; the pages of the guide show the files.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ports.diffs import EXAMPLE, PAGES, with_differences
from tests.ports.pairs import HERE, NAMES, ORIGINALS, ROOT, as_lines, original, port, ported, recorded

FOUND = {system: {file.stem for file in (HERE / system).glob("*.py")} - {"__init__"} for system in [*ORIGINALS, "weir"]}


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_port_computes_what_the_original_has_printed(name: str, parallelism: int) -> None:
    assert ported(name, parallelism) == as_lines(recorded(name).read_text())


def test_there_are_six_scripts_of_pyflink_and_five_of_spark_each_with_a_port_and_a_recorded_output() -> None:
    assert {**{system: set(names) for system, names in ORIGINALS.items()}, "weir": set(NAMES)} == FOUND
    assert {file.stem for file in (HERE / "expected").glob("*.jsonl")} == set(NAMES)
    assert (len(ORIGINALS["pyflink"]), len(ORIGINALS["spark"])) == (6, 5)


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_output_has_rows_of_named_tables(name: str) -> None:
    rows = [json.loads(line) for line in recorded(name).read_text().splitlines()]
    assert rows and all(row["table"] and len(row) > 1 for row in rows)


@pytest.mark.parametrize(("page", "system"), list(zip(PAGES, ORIGINALS, strict=True)), ids=ORIGINALS)
def test_the_page_shows_each_difference_as_the_files_have_it(page: Path, system: str) -> None:
    text = page.read_text()
    shown = [(found[1], found[2]) for found in EXAMPLE.finditer(text)]
    wanted = [(original(name), port(name)) for name in ORIGINALS[system]]
    assert shown == [(str(old.relative_to(ROOT)), str(new.relative_to(ROOT))) for old, new in wanted]
    assert with_differences(text) == text, "run: python -m tests.ports.diffs"
