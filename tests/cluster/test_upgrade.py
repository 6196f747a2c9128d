"""Goal: a running job gets another version of its code, and nothing is lost or doubled across the cut (D8, H7).

Topology: two source splits → a count per key in the row lane → a table; two slots on local Spark, by the commands of
`weir` in a folder of the author's own. The job's file is edited between the commands, as an author would.
Faults: a version that raises at its first record; one that can't read the state.
Checks: the dry run refuses, and changes nothing; the version that raises is followed by the old code, which is not in
the file any more, by itself; the next version adds a field, an operator and a column. In the end the table has every
record once, the counts of each key have no gap, and plain Spark reads all of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from checks.spark import reading_session
from engine.connectors.table import read_table
from engine.core.paths import JobPaths
from engine.host.run_folder import RunFolder
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.protocol.upgrading import Phase
from engine.store.directory import DirectoryStore

ROWS, KEYS = 40_000, 50
JOB = """
import pyarrow as pa
from engine.api import *
from engine.connectors.generator import GeneratorSource
from engine.connectors.table import TableSink


class Count(KeyedProcessFunction):
    def open(self, context):
        self._state = context.get_state(ValueStateDescriptor("seen", STATE, defaults=DEFAULTS))

    def process_element(self, value, context):
        held = self._state.value() or {"seen": 0}
        self._state.update({**held, "seen": held["seen"] + 1})
        yield {**value, "seen": held["seen"] + 1, **MORE}


def job(env):
    env.enable_checkpointing("300 ms")
    make = lambda n: {"n": n, "key": n % 50, "ts": n * 1000}
    numbers = env.from_source(GeneratorSource(make, 2, 40_000, RATE), "n long, key long, ts timestamp", uid="numbers")
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    numbers = numbers.assign_timestamps_and_watermarks(times)
    NEW_OPERATOR
    schema = "n long, key long, ts timestamp, seen long" + COLUMN
    counted = numbers.key_by(KEY).process(Count(), uid="count", schema=schema)
    AFTERWARDS
    counted.sink_to(TableSink("out"), uid="out")
"""
V1 = {
    "STATE": '"struct<seen: int>"',
    "DEFAULTS": "{}",
    "RATE": "60",
    "KEY": '"key"',
    "NEW_OPERATOR": "",
    "COLUMN": '""',
    "AFTERWARDS": "",
    "MORE": "{}",
}
V2 = V1 | {
    "STATE": '"struct<seen: long, since: string>"',
    "DEFAULTS": '{"since": "v1"}',
    "RATE": "None",
    "NEW_OPERATOR": "numbers = numbers.filter(lambda row: row['n'] >= 0)",
    "COLUMN": '", since string"',
    "MORE": '{"since": held.get("since", "v2")}',
}
RAISES = V1 | {"NEW_OPERATOR": "numbers = numbers.map(lambda row: row['nothing'])"}
LACKS_ROWS = V2 | {"AFTERWARDS": "counted = counted.filter(lambda row: row['n'] % 100 != 7)"}
OTHER_KEY = V1 | {"KEY": '"n"'}


class Author:
    """Somebody with a job in a file of his own, and a terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder / "store"
        self.client = JobClient(str(self.store), "shop")
        (folder / "shop").mkdir()
        (folder / "shop" / "__init__.py").touch()

    def writes(self, version: dict[str, str]) -> None:
        text = JOB
        for name, value in version.items():
            text = text.replace(name, value)
        (self.folder / "shop" / "job.py").write_text(text)

    def types(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("weir")), *arguments, "--store", str(self.store)]
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=400, env={**os.environ, "COLUMNS": "100"}
        )

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_table(DirectoryStore(self.store), JobPaths("shop").table("out")).to_pylist()
        return rows


@pytest.fixture
def author(tmp_path: Path) -> Any:
    made = Author(tmp_path)
    yield made
    made.types("cancel", "shop")


@pytest.mark.promise("D8", "F1", "H8")
def test_a_version_that_fails_is_followed_by_the_old_one_and_a_good_one_takes_over(author: Author) -> None:
    author.writes(V1)
    started = author.types("submit", "shop.job:job")
    assert started.returncode == 0, started.stderr
    author.client.wait_for_checkpoint(author.client.trigger_checkpoint(), 180)

    author.writes(OTHER_KEY)
    planned = author.types("upgrade", "shop", "--dry-run", "--json")
    assert planned.returncode == 1, planned
    fates = {(row["uid"], row["fate"]) for row in json.loads(planned.stdout)["rows"]}
    assert fates == {("count", "refused"), ("numbers", "restored"), ("out", "restored")}
    refused = author.types("upgrade", "shop")
    assert refused.returncode == 1 and "was keyed by key int64, is keyed by n int64" in " ".join(refused.stdout.split())
    assert author.client.status().running and RunFolder(author.store, "shop").read_upgrade() is None

    author.writes(RAISES)
    back = _upgraded_over_http(author)
    assert back["phase"] == "back" and "the new version failed" in back["reason"], back
    assert back["raised"]["type"] == "KeyError" and "job.py" in back["raised"]["line"], back
    record = RunFolder(author.store, "shop").read_upgrade()
    assert record is not None and record.progress.phase is Phase.BACK and record.progress.cut is not None
    assert author.client.status().running
    author.client.wait_for_checkpoint(author.client.trigger_checkpoint(), 180)
    assert len(author.rows()) < ROWS, "the old version is to be at work still"

    author.writes(V2)
    shown = author.types("upgrade", "shop", "--dry-run")
    assert shown.returncode == 0, shown
    assert "the column since string is new in the table 'out', and null in older rows" in " ".join(shown.stdout.split())
    done = author.types("upgrade", "shop")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "shop was upgraded to shop.job:job" in done.stdout
    ended = author.client.wait_until_ended(200)
    assert ended is not None and ended.outcome is Outcome.FINISHED, ended

    rows = author.rows()
    assert sorted(row["n"] for row in rows) == list(range(ROWS)), "each record once, across two cuts"
    counts: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        counts[row["key"]].append(row["seen"])
    assert all(sorted(seen) == list(range(1, ROWS // KEYS + 1)) for seen in counts.values())
    assert {row["since"] for row in rows} == {None, "v1"}, "the state of every key is of the first version"
    _read_with_plain_spark(author)


@pytest.mark.promise("H7", "F1")
def test_a_rehearsal_finds_the_rows_that_the_new_version_would_lack_and_touches_nothing(author: Author) -> None:
    author.writes(V1)
    started = author.types("submit", "shop.job:job")
    assert started.returncode == 0, started.stderr
    author.client.wait_for_checkpoint(author.client.trigger_checkpoint(), 180)
    launch = RunFolder(author.store, "shop").launch_file.read_bytes()
    author.writes(LACKS_ROWS)
    rehearsed = author.types("upgrade", "shop", "--rehearse", "2", "--json")
    assert rehearsed.returncode == 1, rehearsed
    result = json.loads(rehearsed.stdout)
    assert result["verdict"] == "failed" and result["evaluated"] == result["expected"] == 2, result
    checks = {check["name"]: check for check in result["checks"]}
    assert checks["out: only in the new"]["verdict"] == "passed", result
    only_old = checks["out: only in the old"]
    assert {row["n"] % 100 for row in only_old["rows"]} == {7}
    lacking = result["figures"]["out: rows of the old"] - result["figures"]["out: rows of the new"]
    assert lacking == only_old["unexpected"] > 0, "all other rows of that time are in both"
    assert "Rehearsal of shop with shop.job:job" in Path(result["data_docs"]).read_text()
    status = author.client.status()
    assert status.running and status.restarts == 0 and author.client.upgrade() is None
    assert RunFolder(author.store, "shop").launch_file.read_bytes() == launch
    shown = author.types("rehearsal", "shop")
    assert shown.returncode == 1 and "rehearsal of shop: failed" in shown.stdout, shown
    over_http = _rehearsed_over_http(author)
    assert over_http["phase"] == "failed" and "out: only in the old" in {
        check["name"] for check in over_http["result"]["checks"] if check["verdict"] == "failed"
    }, over_http
    assert author.client.status().running and author.client.upgrade() is None


def _upgraded_over_http(author: Author) -> Any:
    """Asks the JobMaster of the old version, and looks until it is over: at the record, as no JobMaster may run."""
    address = author.client.folder.read_address()
    assert address is not None
    headers = {"authorization": f"Bearer {address.token}"}
    asked = httpx.post(f"{address.url}/upgrade", headers=headers, json={}, timeout=60)
    assert asked.status_code == 202, asked.text
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        record = RunFolder(author.store, "shop").read_upgrade()
        if record is not None and record.progress.phase.over:
            break
        time.sleep(0.5)
    address = author.client.folder.read_address()
    assert address is not None
    headers = {"authorization": f"Bearer {address.token}"}
    return httpx.get(f"{address.url}/upgrade", headers=headers, timeout=60).raise_for_status().json()


def _rehearsed_over_http(author: Author) -> Any:
    address = author.client.folder.read_address()
    assert address is not None
    headers, url = {"authorization": f"Bearer {address.token}"}, f"{address.url}/rehearsal"
    asked = httpx.post(url, headers=headers, json={"checkpoints": 2}, timeout=60)
    assert asked.status_code == 202, asked.text
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        shown = httpx.get(url, headers=headers, timeout=60).json()
        if shown["phase"] not in ("checking", "rehearsing"):
            return shown
        time.sleep(1)
    raise AssertionError(shown)


def _read_with_plain_spark(author: Author) -> None:
    table = str(author.store / JobPaths("shop").table("out"))
    spark = reading_session("weir upgrade test")
    try:
        plain = spark.read.parquet(table)
        assert plain.count() == ROWS and plain.columns == ["n", "key", "ts", "seen"]
        merged = spark.read.option("mergeSchema", "true").parquet(table)
        assert merged.columns == ["n", "key", "ts", "seen", "since"] and merged.select("n").distinct().count() == ROWS
    finally:
        spark.stop()
