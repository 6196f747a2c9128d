"""Queryable state: the state of one key in the newest epoch, found by its key group, in the library, HTTP and CLI."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from engine.api import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from engine.cli.main import app
from engine.connectors.table import TableSink
from engine.observe.client import JobClient
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.query import NoSuchState, StateOfKey, look_up
from engine.testing import Checkpoint, ListSource, LocalRun, run
from tests.observe.answering import AnsweringRun
from tests.observe.test_http import ask


class Keep(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self._count = context.get_state(ValueStateDescriptor("count", "long"))
        self._days = context.get_list_state(ListStateDescriptor("days", "date"))
        self._by_n = context.get_map_state(MapStateDescriptor("by n", "long", "struct<n long>"))

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        self._count.update((self._count.value() or 0) + 1)
        if value["n"] % 2:
            self._by_n[value["n"]] = {"n": value["n"]}
        context.timer_service().register_processing_time_timer(10**15 + value["n"])
        return [value]

    def on_timer(self, timestamp: int, context: Any) -> Iterable[Any]:
        return ()


def job(env: StreamEnvironment) -> None:
    rows = [{"k": f"k{n % 40}", "g": n % 2, "n": n} for n in range(120)]
    stream = env.from_source(ListSource(rows), "k string, g long, n long", uid="rows")
    stream.key_by("k", "g").process(Keep(), uid="keep it").sink_to(TableSink("out"), uid="out")


def asked(result: LocalRun, uid: str, *key: str) -> StateOfKey:
    assert result.master.newest is not None
    return look_up(EpochLog(result.store, result.paths), result.master.newest, uid, key)


@pytest.mark.promise("C1", "F4")
def test_the_state_of_every_key_is_found_at_any_parallelism() -> None:
    for parallelism in (1, 3):
        result = run(job, parallelism=parallelism)
        for n in range(40):
            found = asked(result, "keep it", f"k{n}", str(n % 2))
            assert found.key == {"k": f"k{n}", "g": n % 2}
            assert found.states["count"] == [{"_value": 3}]
            odd = [m for m in (n, n + 40, n + 80) if m % 2]
            assert [row["_map_key"] for row in found.states.get("by n", [])] == odd
            assert sorted(row["_timer_ms"] for row in found.states["processing-time timers"]) == [
                10**15 + m for m in (n, n + 40, n + 80)
            ]
            assert "days" not in found.states
        assert asked(result, "keep it", "k1", "0").states == {}, "no such key"


class Sums(KeyedCoProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self._sum = context.get_state(ValueStateDescriptor("sum", "long"))

    def process_element1(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        self._sum.update((self._sum.value() or 0) + value["n"])
        return ()

    process_element2 = process_element1


@pytest.mark.promise("A7", "A8", "F4")
@pytest.mark.parametrize("second", ["k", "id"])
def test_the_state_of_two_streams_is_found_also_if_both_name_their_key_alike(second: str) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("n")

    def two(env: StreamEnvironment) -> None:
        ours = [{"k": f"k{n % 3}", "n": n} for n in range(6)]
        theirs = [{second: row["k"], "n": row["n"] * 10} for row in ours]
        one = env.from_source(ListSource([*ours, Checkpoint()]), "k string, n long", uid="one")
        other = env.from_source(ListSource([*theirs, Checkpoint()]), f"{second} string, n long", uid="other")
        left, right = (of.assign_timestamps_and_watermarks(strategy) for of in (one, other))
        keyed = left.key_by("k"), right.key_by(second)
        keyed[0].connect(keyed[1]).process(Sums(), uid="sums", schema="n long").sink_to(TableSink("a"), uid="a")
        joined = keyed[0].interval_join(keyed[1]).between("-1 h", "1 h")
        joined.select("n", uid="joined").sink_to(TableSink("b"), uid="b")

    result = run(two, parallelism=2, until=lambda so_far: so_far.epochs == 1)
    assert asked(result, "sums", "k1").states == {"sum": [{"_value": 55}]}
    found = asked(result, "joined", "k1")
    assert found.key == {"k": "k1"}
    assert sorted(row["n"] for row in found.states["left"]) == [1, 4]
    assert sorted(row["n"] for row in found.states["right"]) == [10, 40]
    with pytest.raises(NoSuchState, match=r"the key of 'joined' is \(k\): give 1 value, not 2"):
        asked(result, "joined", "k1", "k2")


@pytest.mark.promise("F4")
def test_a_wrong_question_is_told_what_to_ask() -> None:
    result = run(job)
    for uid, key, says in (
        (
            "keep",
            ["k1", "1"],
            "no operator 'keep' keeps state by key in epoch 1; did you mean 'keep it'?; it has: keep it",
        ),
        ("keep it", ["k1"], r"the key of 'keep it' is \(k, g\): give 2 values, not 1"),
        ("keep it", ["k1", "one"], "'one' is no int64, which the key column 'g' of 'keep it' is"),
    ):
        with pytest.raises(NoSuchState, match=says.replace("?;", r"\?;")):
            asked(result, uid, *key)


def test_http_answers_for_the_newest_epoch(tmp_path: Path) -> None:
    answering = AnsweringRun(tmp_path)
    assert ask(answering, "/state/pv?key=a").status_code == 409
    answering.run(until=lambda: answering.epochs == 1)
    answer = ask(answering, "/state/pv?key=a").json()
    assert (answer["epoch"], answer["uid"], answer["key"]) == (1, "pv", {"app": "a"})
    assert [row["_rows"] for row in answer["states"]["panes"]] == [1]
    assert ask(answering, "/state/nothing?key=a").status_code == 404


def test_the_command_shows_the_state_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(run(job), "keep it", "k1", "1")
    monkeypatch.setattr(JobClient, "state", lambda self, uid, key: found if key == ["k1", "1"] else None)
    shown = CliRunner().invoke(app, ["state", "orders", "keep it", "k1", "1"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines()[0] == "keep it, k k1, g 1, epoch 1"
    assert re.search(r"^count +3 *$", shown.output, re.MULTILINE)
    assert re.search(r"^by n +map_key 41, map_value \{'n': 41\} *$", shown.output, re.MULTILINE)
    as_json = CliRunner().invoke(app, ["state", "orders", "keep it", "k1", "1", "--json"])
    assert json.loads(as_json.output)["states"]["count"] == [{"_value": 3}]
