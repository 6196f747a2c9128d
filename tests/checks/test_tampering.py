"""Goal: nobody can change a finished drill, its tables or its evidence, without a red check that says where.

Topology: the store of a small drill without faults (tests/checks/small.py). Faults: each way of tampering in
tests/checks/tampering.py, and random edits of tables. Checks: the facts that no longer hold, by check, table and epoch.
No Spark: what Great Expectations make of the facts is in test_planted_defects.py.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks import seal
from checks.audit import Answers, fault_happened, look
from checks.drill import drills
from checks.facts import EPOCHS, EVIDENCE, SCHEMA, STRAY, Fact, broken
from checks.faults import happened, why_no_verdict
from checks.history import equations
from checks.results import Struck, Verdict
from tests.checks import small, tampering
from tests.checks.small import KILLED, RECORDS, SPEC, VICTIM, Table
from tests.checks.tampering import Tamper

Where = tuple[str, str, int | None]

WAYS: dict[str, tuple[Tamper, set[Where]]] = {
    "a stray file": (tampering.stray_file, {(STRAY, "views", None)}),
    "a record of the epoch log deleted": (tampering.log_record_deleted, {(EVIDENCE, "", 5)}),
    "a digest edited": (
        tampering.digest_edited,
        # The totals of epoch 8 changed, and so what epochs 8 and 9 added.
        {(EVIDENCE, "", 8), (EPOCHS, "pv", 8), (EPOCHS, "pv", 9)},
    ),
    "both sides of an inner edge": (tampering.inner_edge, {(EVIDENCE, "", 5)}),
    "both sides of the source's edge": (tampering.source_edge, {(EVIDENCE, "", 5)}),
    "table and ledger, sealed again": (
        tampering.table_and_ledger,
        {(EPOCHS, "views", 4), (EVIDENCE, "views", None), (EVIDENCE, "", None)},
    ),
    "rows swapped between epochs": (tampering.rows_swapped, {(EPOCHS, "views", 3), (EPOCHS, "views", 7)}),
    "an extra column": (tampering.extra_column, {(SCHEMA, "views", 4), (EPOCHS, "views", 4)}),
    "the reads removed": (tampering.reads_removed, {(EVIDENCE, "", None)}),
    "no faults in the result": (tampering.faults_removed, {(EVIDENCE, "", None)}),
    "the cause of the restart removed": (tampering.cause_removed, {(EVIDENCE, "", None)}),
    "a file missing": (tampering.file_missing, {(EPOCHS, "views", 4)}),
    "a file cut short": (tampering.file_truncated, {(EPOCHS, "views", 4)}),
    "a record of the table's log deleted": (
        tampering.table_record_missing,
        {(EPOCHS, "views", 11), (STRAY, "views", None)},  # nobody knows any more that its files are published
    ),
    "an entry that names a file elsewhere": (tampering.entry_elsewhere, {(EPOCHS, "views", None)}),
    "a log that names another folder": (tampering.table_elsewhere, {(EPOCHS, "views", None)}),
    "an epoch cut out of the history": (tampering.history_cut, {(EVIDENCE, "", 5)}),
    "the seal removed": (tampering.seal_removed, {(EVIDENCE, "", None)}),
    "everything sealed again with another key": (tampering.sealed_with_another_key, {(EVIDENCE, "", None)}),
}


def wrong(drill: Path) -> list[Fact]:
    answers = Answers()
    with tempfile.TemporaryDirectory() as scratch:
        looked = look(SPEC, drill, Path(scratch), answers)
    assert not answers.problems
    return list(broken(looked.facts))


def test_a_drill_that_nobody_touched_has_no_wrong_fact(drill: Path) -> None:
    assert wrong(drill) == []


@pytest.mark.promise("H3")
@pytest.mark.parametrize("way", WAYS)
def test_tampering_is_named_by_check_table_and_epoch(way: str, drill: Path) -> None:
    tamper, where = WAYS[way]
    tamper(drill)
    assert {(fact.check, fact.table, fact.epoch) for fact in wrong(drill)} == where


@pytest.mark.promise("H3")
def test_a_changed_counter_is_named_with_both_totals(drill: Path) -> None:
    tampering.inner_edge(drill)
    found = {(fact.what, fact.expected, fact.found) for fact in wrong(drill) if fact.what.startswith("total")}
    assert found == {(f"total of {side}:pv.combine->pv", "35", "42") for side in ("sent", "received")}


@pytest.mark.promise("H1", "H3")
def test_what_was_read_must_have_been_sent(drill: Path) -> None:
    """Both sides of the edge agree. The source and the table do not agree with them."""
    tampering.source_edge(drill)
    with tempfile.TemporaryDirectory() as scratch:
        epochs = look(SPEC, drill, Path(scratch), Answers()).epochs
    found = [(one.epoch, one.what, one.left, one.right) for one in equations(SPEC, epochs, RECORDS) if not one.holds]
    said = "rows read by views = rows sent on views->raw"
    assert found == [(5, said, 250, 243), (6, said, 250, 257)]


@pytest.mark.promise("H3")
def test_the_wrong_record_of_a_ledger_is_named(drill: Path) -> None:
    tampering.table_and_ledger(drill)
    (fact,) = (fact for fact in wrong(drill) if fact.what == "the source-side ledger")
    assert "record 757 is " in fact.found and "'bytes': 1" in fact.found


def test_a_ledger_with_fewer_records_and_a_seal_of_its_own_is_not_the_truth(drill: Path) -> None:
    tampering.edit_ledger(drill, lambda rows: rows.slice(0, RECORDS - 1))
    (fact,) = (fact for fact in wrong(drill) if fact.what == "the source-side ledger")
    assert fact.found == f"it has {RECORDS - 1} records of {RECORDS}"


def test_a_seal_can_not_be_judged_without_its_key(drill: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(seal.KEY)
    monkeypatch.setenv("WEIR_STATE", str(tmp_path / "state"))
    answers = Answers()
    look(SPEC, drill, tmp_path, answers)
    (why,) = answers.problems[EVIDENCE]
    assert set(answers.problems) == {EVIDENCE} and "there is no key" in why and seal.KEY in why


def test_the_first_drill_makes_the_key_and_only_its_user_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(seal.KEY)
    monkeypatch.setenv("WEIR_STATE", str(tmp_path / "state"))
    key = seal.audit_key(make=True)
    assert len(key) == 64 and seal.audit_key() == seal.audit_key(make=True) == key
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["audit.key"]
    assert (tmp_path / "state" / "audit.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.promise("H3")
def test_a_copied_store_is_audited_where_it_is(made: Path, tmp_path: Path) -> None:
    """The table's log of a copy names the files of the original. They are not what is audited."""
    copy = tmp_path / "drills" / SPEC.job / "1"
    shutil.copytree(made, copy)
    assert wrong(copy) == []
    (found,) = drills(tmp_path, SPEC.job)
    assert found.store == str(copy)
    Table(copy, SPEC.rows).file(4).unlink()
    assert {(fact.check, fact.table, fact.epoch) for fact in wrong(copy)} == {(EPOCHS, "views", 4)}


# --- the fault of the drill ---


@pytest.mark.promise("H2")
def test_a_fault_is_the_cause_of_its_restart_or_there_is_no_verdict(made: Path) -> None:
    failures = happened(made, SPEC.job)
    assert failures == [KILLED] and why_no_verdict([VICTIM], failures) == ""
    assert why_no_verdict([], failures) == "no fault struck"
    assert "the fault did not happen" in why_no_verdict([VICTIM], [])
    other_slot, other_pid = Struck(0, 4711, 0, 6, "1.1"), Struck(1, 4712, 0, 6, "1.1")
    assert all(
        "restarted for another cause" in why_no_verdict([victim], failures) for victim in (other_slot, other_pid)
    )
    hung = type(KILLED)(attempt="1.1", cause="slot_hung", detail="slot process 4711", slot=1)
    assert "restarted for another cause: slot_hung" in why_no_verdict([VICTIM], [hung])


@pytest.mark.promise("H2")
@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        (lambda drill: None, ""),
        (tampering.faults_removed, "no verdict: no fault struck"),
        (tampering.cause_removed, "no verdict: the fault did not happen"),
    ],
)
def test_an_audit_without_its_fault_could_not_run(tamper: Tamper, says: str, drill: Path) -> None:
    tamper(drill)
    check = fault_happened(SPEC, drill, "it happened")
    if says:
        assert check.verdict is Verdict.COULD_NOT_RUN and check.summary.startswith(says)
    else:
        assert check.verdict is Verdict.PASSED and "slot 1 (process 4711, attempt 1.1, epoch 6)" in check.summary


# --- random edits ---

EDITS = ("drop", "double", "change", "move", "null", "column", "cut", "delete", "stray", "forget", "repeat", "bytes")


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, int, int, int, int]:
    """Returns a kind of edit, a table (0: views, 1: windows), two epochs and a row, as numbers to be reduced."""
    number = st.integers(0, 1_000)
    return draw(st.sampled_from(EDITS)), draw(st.integers(0, 1)), draw(number), draw(number), draw(number)


def edit(drill: Path, kind: str, which: int, one: int, two: int, at: int) -> str:
    """Edits a table, and returns the table's name. The log is sealed again, as somebody with access could."""
    audited = SPEC.tables[which]
    table = Table(drill, audited)
    full = [number for number in range(1, small.EPOCHS + 1) if which == 0 or number in (8, 11, 12)]
    epoch, other = full[one % len(full)], full[(one + 1 + two % (len(full) - 1)) % len(full)]
    path = table.file(epoch)
    rows = pq.read_table(path)
    at %= rows.num_rows
    value = [name for name in rows.column_names if pa.types.is_integer(rows.schema.field(name).type)][-1]
    simple: dict[str, Any] = {
        "drop": small.without(at),
        "double": small.doubled(at),
        "change": small.changed(at, value, lambda old: old + 1),
        "null": small.changed(at, rows.column_names[0], None),
        "column": lambda table: table.append_column("more", pa.array([0] * table.num_rows)),
    }
    match kind:
        case "move":
            moved = rows.slice(at, 1)
            table.rewrite(epoch, small.without(at))
            table.rewrite(other, lambda there: pa.concat_tables([there, moved]))
        case "cut":
            path.write_bytes(path.read_bytes()[: at + 1])
        case "delete":
            path.unlink()
        case "stray":
            shutil.copy(path, path.with_name(f"stray-{at}.parquet"))
        case "forget":
            table.change_entries(lambda entry: None if entry["path"].endswith(path.name) else entry)
        case "repeat":
            table.publish_again(epoch)
        case "bytes":
            data = bytearray(path.read_bytes())
            data[at % len(data)] ^= 0xFF
            path.write_bytes(data)
        case _:
            table.rewrite(epoch, simple[kind])
    return audited.name


@pytest.mark.promise("H3")
@given(edits())
def test_any_edit_of_a_committed_table_is_red_and_names_the_table(
    made: Path, chosen: tuple[str, int, int, int, int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        drill = small.copied(made, Path(folder) / "drill")
        table = edit(drill, *chosen)
        found = wrong(drill)
        assert found and {fact.table for fact in found} == {table}, (chosen, found)
        assert {fact.check for fact in found} <= {EPOCHS, SCHEMA, STRAY}
        if chosen[0] not in ("column", "stray", "bytes"):  # all others are also seen by the digests, without the seal
            assert any(fact.what == "rows in files" for fact in found), (chosen, found)
