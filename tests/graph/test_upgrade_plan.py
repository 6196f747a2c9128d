"""The dry run of an upgrade says of everything what becomes of it (D8)."""

from __future__ import annotations

import pytest

from engine.api import DataStream, count, maximum, total
from engine.connectors.table import TableSink
from engine.graph.upgrade_plan import Fate, Planned, UpgradePlan, plan_upgrade
from engine.protocol.manifest import StateFile
from tests.graph.test_compatibility import Build, graph, summed, taken_by, windows


def planned(before: Build, now: Build, *stateful: str, allow: bool = False) -> UpgradePlan:
    return plan_upgrade(graph(now), taken_by(graph(before), *stateful), {}, allow)


def fates(plan: UpgradePlan) -> dict[str, str]:
    return {row.uid: row.fate.value for row in plan.rows}


def version(*extra: str, sums: str = "sum", column: str = "n") -> Build:
    def build(views: DataStream) -> None:
        views.select("app", *dict.fromkeys(("n", column))).sink_to(TableSink("raw"), uid="raw")
        views.select("app", "n").key_by("app").sum("n", uid=sums).print(uid="shown")
        for uid in extra:
            views.select("app", "n").key_by("app").max("n", uid=uid).sink_to(TableSink(uid), uid=f"{uid}-table")

    return build


@pytest.mark.promise("D8")
def test_every_source_operator_and_sink_has_a_row_that_says_what_becomes_of_it() -> None:
    plan = planned(version("low"), version("high", column="x"), "sum", "low", allow=True)
    assert fates(plan) == {
        "views": "restored",
        "sum": "restored",
        "shown": "restored",
        "raw": "migrated",
        "high": "new",
        "high-table": "new",
        "low": "dropped",
        "low-table": "dropped",
    }
    by_uid = {row.uid: row for row in plan.rows}
    assert by_uid["raw"].what == "the column x double is new in the table 'raw', and null in older rows"
    assert by_uid["sum"].what == "state: 1 row, 0.0 kB"
    assert by_uid["high-table"].what == "the table 'high' begins with epoch 8"
    assert by_uid["low"].what.endswith("--allow-non-restored-state allows it")
    assert not plan.refused and (plan.job, plan.epoch) == ("job", 7)


@pytest.mark.promise("D8")
def test_what_is_refused_comes_first_and_says_what_to_do() -> None:
    plan = planned(version("low"), version(sums="total"), "sum", "low")
    assert [row.fate for row in plan.rows][:3] == [Fate.REFUSED] * 3
    refused = {row.uid: row for row in plan.refused}
    assert refused.keys() == {"sum", "low", "low-table"}
    assert "total is new and keeps the same state" in refused["sum"].what and 'write uid="sum"' in refused["sum"].fix


@pytest.mark.promise("D8")
def test_what_no_option_allows_stays_refused_with_the_option() -> None:
    plan = planned(windows(n=total("n")), windows("20 s", n=total("n")), "pv", allow=True)
    assert [(row.uid, bool(row.fix)) for row in plan.refused] == [("pv", True)]


@pytest.mark.promise("D8")
def test_one_operator_may_be_migrated_in_one_state_and_refused_in_another() -> None:
    rows = planned(windows(n=total("n")), windows("20 s", n=total("n"), high=maximum("x")), "pv").rows
    assert sorted(row.fate.value for row in rows if row.uid == "pv") == ["migrated", "refused"]


@pytest.mark.promise("D8")
def test_an_operator_that_had_no_state_may_go() -> None:
    plan = planned(summed("sum"), lambda views: views.print())
    assert Planned("sum", "reduce", Fate.DROPPED, "it is gone, and nothing of it is in the snapshot") in plan.rows


@pytest.mark.promise("D8")
def test_state_that_a_function_asks_for_when_it_is_opened_is_named_with_its_size() -> None:
    manifest = taken_by(graph(windows(pv=count())), "pv")
    manifest.subtasks[0].files.append(StateFile("pv", "state", "b", 2500, "00", 9))
    (row,) = [row for row in plan_upgrade(graph(windows(pv=count())), manifest, {}, False).rows if row.uid == "pv"]
    assert row.what == "state: 10 rows, 2.5 kB"
