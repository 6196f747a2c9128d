"""Goal: what is kept of drills gives true figures, and a page that shows each fault, its age and its trend."""

from __future__ import annotations

import math
import re
import threading
from pathlib import Path
from queue import SimpleQueue

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.catalogue import CATALOGUE
from checks.docs import serve
from checks.records import (
    RECORDS,
    FaultFigures,
    figures_of,
    keep,
    no_verdict,
    read_records,
    record_of,
    totals_of,
)
from checks.report import REPORT, report, trend, write_report
from checks.results import AuditResult, CheckResult, DrillResult, Struck, Verdict

HOUR_MS = 3_600_000


def drilled(name: str, *blows: Struck, violations: list[str] | None = None) -> DrillResult:
    return DrillResult(
        "pageviews", f"/s/drills/pageviews/{name}", 1, 1.0, 1, 9, 40, violations or [], 5, 9.0, 7, [*blows]
    )


def blow(fault: str, recovery_s: float, number: int = 0) -> Struck:
    return Struck(
        1, 4711, 1_000, 6, "1.1", fault, number, after="1.2", cause="slot_lost: of 4711", recovery_s=recovery_s
    )


def audited(*checks: CheckResult, lost: float = 0.0) -> AuditResult:
    return AuditResult("pageviews", 9, [*checks], len(checks), len(checks), {"lost": lost, "duplicated": 0.0})


def of(fault: str, *recoveries_s: float) -> FaultFigures:
    records = [record_of(drilled(f"d{i}", blow(fault, s)), audited(PASSED)) for i, s in enumerate(recoveries_s)]
    return next(one for one in figures_of(records) if one.fault == fault)


PASSED = CheckResult("rows", Verdict.PASSED, "all there")
LOST = CheckResult("rows", Verdict.FAILED, "3 rows are lost")


@pytest.mark.promise("H2")
def test_a_record_has_the_verdict_of_audit_and_reader_and_each_blow() -> None:
    good = record_of(drilled("a", blow("slot-killed", 1.5)), audited(PASSED), run="r1")
    assert (good.id, good.verdict, good.why, good.lost, good.doubled, good.run) == ("a", Verdict.PASSED, "", 0, 0, "r1")
    assert good.faults == ["slot-killed"] and good.blows == [blow("slot-killed", 1.5)] and good.reads == 40
    red = record_of(drilled("b", blow("slot-killed", 1.5)), audited(PASSED, LOST, lost=3.0))
    assert (red.verdict, red.why, red.lost) == (Verdict.FAILED, "rows: 3 rows are lost", 3)
    partial = record_of(drilled("c", blow("slot-killed", 1.5), violations=["part of epoch 3"]), audited(PASSED))
    assert (partial.verdict, partial.why, partial.partial_reads) == (Verdict.FAILED, "part of epoch 3", 1)
    warned = CheckResult("stray", Verdict.FAILED, "a file", warning=True)
    assert record_of(drilled("d", blow("slot-killed", 1.5)), audited(PASSED, warned)).verdict is Verdict.PASSED
    assert record_of(drilled("e", blow("slot-killed", 1.5))).lost is None, "no audit has counted"


@pytest.mark.promise("H2")
def test_records_outlive_the_folders_of_drills_and_a_later_audit_replaces_an_earlier_one(tmp_path: Path) -> None:
    first = record_of(drilled("a", blow("slot-killed", 1.5)), audited(PASSED), run="r1")
    second = record_of(drilled("a", blow("slot-killed", 1.5)), audited(LOST, lost=1.0))
    other = no_verdict(9, 8, ["jvm-hung"], "the JVM went on")
    for record in (other, first, second):
        keep(tmp_path, "pageviews", record)
    with (tmp_path / "drills" / "pageviews" / RECORDS).open("ab") as file:
        file.write(b'{"id": "cut sho')
    assert read_records(tmp_path, "pageviews") == [msgspec.structs.replace(second, run="r1"), other]
    assert read_records(tmp_path, "another") == []


@pytest.mark.promise("H2")
def test_figures_count_each_fault_and_take_no_recovery_from_a_drill_without_a_verdict() -> None:
    both = drilled(
        "a", blow("daemon-and-slot-killed", 2.0), blow("daemon-and-slot-killed", 2.0, 1), blow("slot-hung", 12)
    )
    records = [
        record_of(both, audited(PASSED)),
        record_of(drilled("b", blow("slot-hung", 20)), audited(LOST, lost=2.0)),
        no_verdict(9, 8, ["slot-hung"], "it went on"),
    ]
    found = {one.fault: one for one in figures_of(records)}
    assert list(found) == list(CATALOGUE)
    two, hung = found["daemon-and-slot-killed"], found["slot-hung"]
    assert (two.passed, two.recoveries_s) == (1, (2.0,)), "two blows of one fault have one recovery"
    assert (hung.passed, hung.failed, hung.without_verdict, hung.recoveries_s) == (1, 1, 1, (12, 20))
    assert hung.last == records[-1] and found["jvm-killed"].last is None and found["jvm-killed"].recovery_s(0.5) is None
    totals = totals_of(records)
    assert (totals.drills, totals.strikes, totals.failed, totals.without_verdict) == (3, 3, 1, 1)
    assert (totals.lost, totals.doubled, totals.partial_reads) == (2, 0, 0)


@given(st.lists(st.floats(0.001, 1e4), min_size=1, max_size=40), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_a_recovery_that_so_many_did_not_exceed(recoveries_s: list[float], share: float) -> None:
    found = of("slot-killed", *recoveries_s).recovery_s(share)
    assert found in recoveries_s
    assert sum(one <= found for one in recoveries_s) >= share * len(recoveries_s) - 1e-9
    assert sum(one < found for one in recoveries_s) <= math.ceil(share * len(recoveries_s)) - 1


def test_targets_follow_time_outs_and_ways_back() -> None:
    targets = {name: fault.target_s for name, fault in CATALOGUE.items()}
    assert targets["slot-killed"] == 5.0 and targets["jobmaster-killed"] == 20.0
    assert targets["slot-hung"] == 15.0 and targets["jvm-hung"] == 50.0 and targets["slots-cut"] == 15.0
    assert targets["daemon-stopped"] == 20.0 and targets["store-read-only"] == 11.0


@pytest.mark.promise("H2")
def test_the_page_shows_each_fault_with_its_age_and_each_drill_with_its_blows() -> None:
    evil = "<script>alert(1)</script>"
    records = [
        record_of(drilled("a", blow("slot-killed", 1.5)), audited(PASSED), run="run-4711"),
        no_verdict(6, 8, ["jvm-hung"], evil, live=True),
    ]
    text = report("pageviews", records, {"a"}, 3 * HOUR_MS)
    rows = {name: cells for name, cells in re.findall(r"<tr><td><code>([a-z-]+)</code></td>(.*?)</tr>", text)}
    assert list(rows) == list(CATALOGUE)
    assert "passed" in rows["slot-killed"] and ">2 h<" in rows["slot-killed"] and ">1.5 s<" in rows["slot-killed"]
    assert "could not run" in rows["jvm-hung"] and "never drilled" in rows["slots-cut"]
    assert 'href="a/data_docs/index.html"' in text and 'href="/runs/run-4711"' in text
    for said in ("slot 1, process 4711", "1970-01-01 00:00:01 UTC", "1.1 → 1.2", "slot_lost: of 4711", "seed 7"):
        assert said in text, said
    assert "the live job" in text and evil not in text and "default-src 'none'" in text


@pytest.mark.promise("H2")
def test_a_recovery_above_its_target_lies_above_the_line() -> None:
    records = [record_of(drilled(f"d{s}", blow("slot-killed", s)), audited(PASSED)) for s in (2.5, 5.5)]
    picture = trend(records)
    (line,) = re.findall(r'y1="([\d.]+)"[^>]*class="target"', picture)
    good, late = re.findall(r'cy="([\d.]+)" r="3.5" class="(good|late)"', picture)
    assert good[1] == "good" and late[1] == "late" and float(late[0]) < float(line) < float(good[0])
    assert "0 recoveries" in trend([])


@pytest.mark.promise("H2")
def test_the_report_and_data_docs_are_served_and_nothing_else_of_the_drills(tmp_path: Path) -> None:
    keep(tmp_path, "pageviews", record_of(drilled("a", blow("slot-killed", 1.5)), audited(PASSED)))
    page = write_report(tmp_path, "pageviews")
    assert page.name == REPORT and "Drills of pageviews" in page.read_text()
    docs = page.parent / "a" / "data_docs"
    docs.mkdir(parents=True)
    (docs / "index.html").write_text("docs")
    (page.parent / "a" / "drill.json").write_text("{}")
    address: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=serve, args=(page.parent, 0, REPORT, address.put), daemon=True).start()
    url = address.get(timeout=60)
    assert url.endswith(f"/{REPORT}") and httpx.get(url).text == page.read_text()
    base = url.removesuffix(REPORT)
    assert httpx.get(base + "a/data_docs/index.html").text == "docs"
    for other in ("", "a/drill.json", RECORDS, "a/data_docs/../drill.json"):
        assert httpx.get(base + other).status_code == 404, other
