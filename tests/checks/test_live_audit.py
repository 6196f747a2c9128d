"""Goal: nobody can change a table of production without a red check that says which table, epoch and file.

Topology: a job in this process (tests/checks/live.py) that publishes, folds, rewinds and goes on; its table has nested
columns. Faults: rows altered, lost, doubled, swapped; files deleted, cut short, taken out of the log; history, indexes
and records of audits edited, alone and together. Checks: the facts that do not hold, by check and epoch; a table that
nobody touched is green whatever the job does meanwhile. No Spark: that is in test_live_audit_on_spark.py.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks.facts import Fact
from checks.live.ledger import NothingToAudit, read_ledger
from checks.live.look import EPOCHS, FILES, LEDGER, SCHEMA
from checks.live.record import Memory
from checks.live.spans import Spans, decoded, encoded
from checks.live.table import LiveTable
from engine.connectors.table import planning
from engine.connectors.table.folds import FoldLog, level_of
from tests.checks.live import JOB, ROWS, LiveJob
from tests.checks.small import both, changed, doubled, without

Where = set[tuple[str, int | None]]


@pytest.fixture(autouse=True)
def small_folds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Folds happen after four files, and each test has a memory of audits of its own."""
    monkeypatch.setattr(planning, "FAN", 4)
    monkeypatch.setattr(os, "fsync", lambda file: None)  # no machine crashes here, and there are thousands of files
    monkeypatch.setenv("WEIR_STATE", str(tmp_path / "state"))


@pytest.fixture
def job(tmp_path: Path) -> LiveJob:
    return LiveJob(tmp_path / "store")


def where(wrong: list[Fact]) -> Where:
    """Returns check and epoch of each fact that names something."""
    return {(fact.check, fact.epoch) for fact in wrong}


def levels(job: LiveJob) -> set[bool]:
    return {level_of(path.name) > 0 for path in job.files()}


# --- what nobody touched is green ---


@pytest.mark.promise("H4")
def test_a_table_that_nobody_touched_is_green_while_it_is_folded_and_old_files_go(job: LiveJob) -> None:
    files = 0
    for _ in range(12):
        job.run(7)
        assert job.audit() == []
        files += len(job.files())
    assert levels(job) == {True, False}
    before = len(job.looked["pv"].record.files)
    assert job.audit(full=True) == [] and job.looked["pv"].figures["files_read"] == before


@pytest.mark.promise("H4")
def test_each_run_reads_only_what_is_new_and_a_share_of_the_rest(job: LiveJob) -> None:
    job.run(40)
    assert job.audit() == [] and job.looked["pv"].figures["rows_read"] == 40 * ROWS
    job.run(2, tidy=False)
    assert job.audit(within=10) == []
    assert job.looked["pv"].figures["rows_read"] == 2 * ROWS
    assert job.looked["pv"].figures["files_read"] < len(job.files()) / 2


@pytest.mark.promise("H4")
def test_each_file_is_read_again_within_the_given_number_of_audits(job: LiveJob) -> None:
    job.run(60)
    for within in (1, 3, 8):
        assert job.audit(within=within, full=True) == []
        first = job.looked["pv"].record.number
        for _ in range(within):
            job.run(1, tidy=False)
            assert job.audit(within=within) == []
        assert min(file.read for file in job.looked["pv"].record.files) > first, within


@pytest.mark.promise("H4")
def test_epochs_that_the_history_has_forgotten_are_compared_by_their_sum(job: LiveJob) -> None:
    job.run(23)
    job.forget_history(18)
    assert job.audit() == []
    assert job.looked["pv"].figures["rows_read"] == 23 * ROWS
    job.run(30)
    job.forget_history(45)
    assert job.audit() == []


@pytest.mark.promise("H4")
def test_one_lost_row_among_epochs_that_the_history_has_forgotten_is_red(job: LiveJob) -> None:
    job.run(23, tidy=False)
    job.forget_history(18)
    job.rewrite(job.files()[4], without(0))
    wrong = job.audit()
    assert where(wrong) == {(EPOCHS, 1)}
    assert "epochs 1 to 1" in next(fact.what for fact in wrong if fact.epoch == 1)
    assert where(job.audit()) == {(EPOCHS, 1)}, "it stays red until somebody mends it"


@pytest.mark.promise("H4")
@pytest.mark.parametrize("audited", [True, False])
@pytest.mark.parametrize("hide", [True, False])
def test_a_table_stays_green_when_the_job_goes_back(job: LiveJob, hide: bool, audited: bool) -> None:
    job.run(16)
    if audited:
        assert job.audit() == []
    job.run(1)
    if audited:
        assert job.audit() == []
    old, new = job.rewind(hide=hide)
    assert old == 16 and new == (20 if hide else 18)
    assert job.audit() == []
    job.restart()
    job.run(15)
    assert job.audit() == []
    job.rewind(hide=hide)
    job.restart()
    job.run(3)
    assert job.audit(full=True) == []


@pytest.mark.promise("H4")
def test_a_rewind_that_the_table_has_not_carried_out_yet_is_no_red_check(job: LiveJob) -> None:
    job.run(16)
    assert job.audit() == []
    job.rewind(commit=False)
    assert job.audit() == []


@pytest.mark.promise("H4")
def test_an_epoch_that_is_published_and_not_committed_yet_waits_for_the_next_audit(job: LiveJob) -> None:
    job.run(5)
    assert job.audit() == []
    job.publish()
    assert job.audit() == [] and job.looked["pv"].until == 5
    job.commit()
    assert job.audit() == [] and job.looked["pv"].until == 6


@pytest.mark.promise("H4")
def test_an_epoch_whose_event_was_never_written_is_compared_all_the_same(job: LiveJob) -> None:
    job.run(5)
    job.run(1, history=False)
    job.run(9)
    assert job.audit() == []


@pytest.mark.promise("H4")
def test_files_that_are_folded_and_deleted_while_they_are_read_are_no_loss(
    job: LiveJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(13, tidy=False)
    read, seen = LiveTable.read, []

    def folding(self: LiveTable, name: str) -> bytes:
        if not seen:
            seen.append(name)
            job.tidy()
            job.run(10)
            for _ in range(8):
                job.run(1)
            (self.store.root / self.path / name).unlink(missing_ok=True)  # type: ignore[attr-defined]
        return read(self, name)

    monkeypatch.setattr(LiveTable, "read", folding)
    assert job.audit() == [] and seen
    assert job.audit(full=True) == []


@pytest.mark.promise("H4")
@pytest.mark.parametrize("fold", [True, False])
def test_a_table_at_an_absolute_path_is_audited(tmp_path: Path, fold: bool) -> None:
    job = LiveJob(tmp_path / "store", str(tmp_path / "lake" / "pv"), fold=fold)
    job.run(14)
    assert job.audit() == [] and job.looked[job.path].figures["rows_read"] == 14 * ROWS
    job.rewrite(job.files()[0], without(1))
    assert (EPOCHS, 1) in where(job.audit(full=True))


@pytest.mark.promise("H4")
def test_a_table_is_audited_when_another_sink_goes_on_with_it_and_when_it_has_none_any_more(job: LiveJob) -> None:
    job.run(12)
    assert job.audit() == []
    job.use("pv", uid="renamed")
    job.restart()
    job.run(6)
    assert job.audit() == []
    job.use("other", uid="renamed")
    job.restart()
    job.run(6)
    assert job.audit() == [] and set(job.looked) == {"pv", "other"}
    job.table = job.folder / job.paths.table("pv")
    job.files()[0].unlink()
    assert {fact.table for fact in job.audit()} == {"pv"}


@pytest.mark.promise("H4")
def test_a_table_that_got_a_column_is_green(job: LiveJob) -> None:
    job.run(9)
    assert job.audit() == []
    job.add_column("more")
    job.run(9)
    assert job.audit() == [] and job.audit(full=True) == []


@pytest.mark.promise("H4")
def test_a_copy_of_a_store_that_goes_on_elsewhere_is_audited_by_the_same_record(job: LiveJob, tmp_path: Path) -> None:
    job.run(9)
    assert job.audit() == []
    moved = tmp_path / "moved"
    job.folder.rename(moved)
    job.__dict__.update(folder=moved, store=type(job.store)(moved), table=moved / job.paths.table("pv"))
    job.restart()
    job.run(12)
    assert job.audit(full=True) == []


def test_a_job_without_epochs_has_nothing_to_audit(job: LiveJob) -> None:
    with pytest.raises(NothingToAudit, match="has published no epoch"):
        job.audit()


# --- tampering ---


def alter(job: LiveJob, path: Path) -> None:
    job.rewrite(path, changed(1, "n", 10**9))


def alter_nested(job: LiveJob, path: Path) -> None:
    job.rewrite(path, changed(1, "tags", ["other"]))


def lose(job: LiveJob, path: Path) -> None:
    job.rewrite(path, without(2))


def double(job: LiveJob, path: Path) -> None:
    job.rewrite(path, doubled(2))


def lose_one_and_double_another(job: LiveJob, path: Path) -> None:
    job.rewrite(path, both(doubled(2), without(0)))


WAYS: dict[str, Callable[[LiveJob, Path], None]] = {
    "altered": alter,
    "altered in a nested column": alter_nested,
    "lost": lose,
    "doubled": double,
    "one lost and another doubled": lose_one_and_double_another,
}


@pytest.mark.promise("H4")
@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_was_changed_after_it_was_audited_is_found_and_named(job: LiveJob, way: str, folded: bool) -> None:
    job.run(24, tidy=folded)
    assert job.audit() == []
    job.run(24, tidy=folded)
    job.forget_history(45)
    assert job.audit() == []
    path = next(path for path in job.files() if level_of(path.name) == int(folded))
    WAYS[way](job, path)
    wrong = job.audit(full=True)
    rows = [fact for fact in wrong if fact.check == EPOCHS and fact.epoch is not None]
    # The one that was doubled went to the end of the file.
    assert len(rows) == (2 if folded and way == "one lost and another doubled" else 1)
    assert all(path.name in fact.what and fact.table == "pv" for fact in rows)
    assert any(fact.check == FILES and fact.what == path.name for fact in wrong)
    assert where(job.audit()) >= {(EPOCHS, rows[0].epoch)}, "it stays red until somebody mends it"


@pytest.mark.promise("H4")
@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_was_changed_before_its_first_audit_is_found(job: LiveJob, way: str) -> None:
    job.run(24, tidy=False)
    WAYS[way](job, job.files()[10])  # the first file of epoch 6
    assert where(job.audit()) == {(EPOCHS, 6)}
    job.run(5)
    assert (EPOCHS, 6) in where(job.audit())


@pytest.mark.promise("H4")
def test_within_the_given_number_of_audits_a_change_is_found_without_being_asked_for_all(job: LiveJob) -> None:
    job.run(40)
    assert job.audit(within=5) == []
    data = job.files()[0].read_bytes()
    job.files()[0].write_bytes(data[:500] + bytes([data[500] ^ 1]) + data[501:])
    assert any(job.audit(within=5) for _ in range(5))


@pytest.mark.promise("H4")
def test_a_doubled_row_is_shown(job: LiveJob) -> None:
    job.run(4, tidy=False)
    job.rewrite(job.files()[2], doubled(1))
    said = next(fact.found for fact in job.audit() if fact.epoch == 2 and fact.check == EPOCHS)
    assert "1 too many: row 4 of" in said and "n 9," in said


@pytest.mark.promise("H4")
def test_rows_swapped_between_epochs_are_shown(job: LiveJob) -> None:
    job.run(6, tidy=False)
    assert job.audit() == []
    second, fifth = job.files()[2], job.files()[8]
    one, other = (pq.read_table(path).slice(1, 1) for path in (second, fifth))
    for path, row in ((second, other), (fifth, one)):
        job.rewrite(path, lambda rows, row=row: pa.concat_tables([rows.slice(0, 1), row, rows.slice(2)]))  # type: ignore[misc]
    wrong = {fact.epoch: fact.found for fact in job.audit(full=True) if fact.check == EPOCHS and fact.epoch}
    assert "n 33," in wrong[2] and "is of epoch 5" in wrong[2]
    assert "n 9," in wrong[5] and "is of epoch 2" in wrong[5]


@pytest.mark.promise("H4")
def test_a_row_that_moved_to_another_epoch_is_shown_in_both(job: LiveJob) -> None:
    job.run(6, tidy=False)
    second, fifth = job.files()[2], job.files()[8]
    row = pq.read_table(second).slice(1, 1)
    job.rewrite(second, without(1))
    job.rewrite(fifth, lambda rows: pa.concat_tables([rows, row]))
    wrong = {fact.epoch: fact.found for fact in job.audit() if fact.check == EPOCHS and fact.epoch}
    assert "1 lost: row" in wrong[2] and "is in epoch 5" in wrong[2] and "is of epoch 2" in wrong[5]


@pytest.mark.promise("H4")
def test_a_file_that_is_missing_or_cut_short_is_named_with_its_epochs(job: LiveJob) -> None:
    job.run(30)
    assert job.audit() == []
    path = job.files()[0]
    data = path.read_bytes()
    path.unlink()
    wrong = job.audit()
    fact = next(fact for fact in wrong if fact.what == path.name)
    assert fact.found == "missing" and "epochs 1 to" in fact.expected
    path.write_bytes(data[:-10])
    assert (FILES, 1) in where(job.audit())
    path.write_bytes(data)
    assert job.audit(full=True) == [], "a file that was brought back is good again"


@pytest.mark.promise("H4")
@pytest.mark.parametrize("audited", [True, False])
def test_a_file_that_was_taken_out_of_the_log_is_missed(job: LiveJob, audited: bool) -> None:
    job.run(12, tidy=False)
    if audited:
        assert job.audit() == []
    path = job.files()[6]
    job.drop(path)
    wrong = job.audit()
    assert where(wrong) == {(EPOCHS, 4)}
    assert not audited or path.name in next(fact.what for fact in wrong if fact.epoch == 4)
    assert where(job.audit()) == {(EPOCHS, 4)}


@pytest.mark.promise("H4")
def test_the_newest_records_of_the_log_can_not_be_taken_back(job: LiveJob) -> None:
    job.run(15, tidy=False)
    for record in job.records()[-3:]:
        record.unlink()
        record.with_name(f".{record.name}.checksum").unlink()
    assert {fact.what for fact in job.audit()} >= {"the newest record of the table's log"}


@pytest.mark.promise("H4")
def test_a_record_of_the_log_that_was_edited_is_named(job: LiveJob) -> None:
    job.run(15, tidy=False)
    record = job.records()[-1]
    record.write_text(record.read_text().replace('"size":', '"size":1'))
    (fact,) = job.audit()
    assert fact.check == FILES and "_spark_metadata/14 is not what Weir wrote" in fact.found


@pytest.mark.promise("H4")
def test_a_digest_that_was_edited_in_the_history_is_named_before_and_after_the_audit(job: LiveJob) -> None:
    job.run(9)
    job.edit_history(4, 1)
    assert where(job.audit()) == {(EPOCHS, 4), (EPOCHS, 5)}
    job.edit_history(4, -1)
    assert {epoch for check, epoch in where(job.audit()) if check == LEDGER} == {4, 5}
    job.edit_history(6, 1)  # the manifests of later epochs are still there, and speak for them
    assert {epoch for check, epoch in where(job.audit()) if check == LEDGER} == {4, 5, 6, 7}


@pytest.mark.promise("H4")
def test_table_index_and_history_changed_together_after_an_audit_are_red(job: LiveJob) -> None:
    job.run(30)
    assert job.audit() == []
    path = next(path for path in job.files() if level_of(path.name))
    rows = pq.read_table(path)
    job.rewrite(path, changed(1, "n", 10**9))
    from engine.connectors.table.folder import _digest
    from engine.connectors.table.folds import Span

    folds = FoldLog(job.store, f"{JOB}/tables/pv")
    spans = folds.index(path.name)
    assert spans is not None
    by = _digest(pq.read_table(path)) - _digest(rows)
    folds.write_index(path.name, [Span(spans[0].epoch, spans[0].rows, (spans[0].digest + by) % (1 << 64)), *spans[1:]])
    for epoch in range(1, 31):
        job.edit_history(epoch, by)
    assert (EPOCHS, 1) in where(job.audit(full=True))


@pytest.mark.promise("H4")
def test_the_record_of_audits_can_not_be_edited_deleted_or_replaced_by_an_older_one(job: LiveJob) -> None:
    job.run(5)
    assert job.audit() == []
    folder = job.folder / job.paths.audit("pv")
    (first,) = folder.iterdir()
    older = first.read_bytes()
    job.run(5)
    assert job.audit() == []
    (record,) = folder.iterdir()
    good = record.read_bytes()
    record.write_bytes(good.replace(b"out", b"ouu", 1))
    assert [fact.check for fact in job.audit()] == [LEDGER]
    shutil.rmtree(folder)
    Memory().remember(job.record.job_id, "pv", 2)
    assert [(fact.check, fact.found) for fact in job.audit()] == [(LEDGER, "none")]
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / first.name).write_bytes(older)
    Memory().remember(job.record.job_id, "pv", 2)
    assert [(fact.check, fact.found) for fact in job.audit()] == [(LEDGER, "audit 1")]


@pytest.mark.promise("H4")
def test_a_page_of_a_large_file_can_not_be_edited(job: LiveJob, monkeypatch: pytest.MonkeyPatch) -> None:
    from checks.live import record

    monkeypatch.setattr(record, "PAGE_BYTES", 1)
    job.run(30)
    assert job.audit() == [] and job.audit(full=True) == []
    for page in (job.folder / job.paths.audit("pv")).glob("*.spans"):
        page.write_bytes(page.read_bytes()[:-1] + b"x")
    alter(job, job.files()[0])
    assert LEDGER in {fact.check for fact in job.audit(full=True)}


@pytest.mark.promise("H4")
def test_a_column_of_another_type_and_an_extra_column_are_named(job: LiveJob) -> None:
    job.run(4, tidy=False)
    job.rewrite(job.files()[2], lambda rows: rows.append_column("note", pa.array(["x"] * rows.num_rows)))
    job.rewrite(job.files()[4], lambda rows: rows.set_column(0, "n", rows.column("n").cast(pa.int32())))
    assert {epoch for check, epoch in where(job.audit()) if check == SCHEMA} == {2, 3}


@pytest.mark.promise("H4")
def test_an_entry_that_names_a_file_elsewhere_is_named(job: LiveJob) -> None:
    job.run(4, tidy=False)
    record = job.records()[-1]
    from tests.checks.small import Table

    Table.write_record(record, record.read_text().replace(job.table.as_uri(), "file:///lake"))
    assert {fact.found for fact in job.audit() if fact.check == FILES} == {"file:///lake"}


@pytest.mark.promise("H4")
def test_a_table_that_was_deleted_is_red_and_a_store_that_is_away_gives_no_verdict(job: LiveJob) -> None:
    from engine.core.errors import WeirError

    job.run(4)
    assert job.audit() == []
    job.table.rename(job.table.with_name("gone"))
    assert [(fact.check, fact.found) for fact in job.audit()] == [(FILES, "missing")]
    job.folder.rename(job.folder.with_name("away"))
    job.folder.mkdir()
    with pytest.raises(WeirError):
        job.audit()


EDITS = st.sampled_from(["lose", "double", "alter", "null", "truncate", "delete", "drop", "swap"])


@pytest.mark.promise("H4")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_edit_of_a_committed_table_is_red(data: st.DataObject) -> None:
    epochs, audited = data.draw(st.integers(2, 30), "epochs"), data.draw(st.booleans(), "audited")
    edit, fold = data.draw(EDITS, "edit"), data.draw(st.booleans(), "fold")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEIR_STATE", f"{folder}/state")
        job = LiveJob(Path(folder) / "store")
        job.run(epochs, tidy=fold)
        if audited:
            assert job.audit() == []
        path = job.files()[data.draw(st.integers(0, len(job.files()) - 1), "file")]
        count = pq.read_metadata(path).num_rows
        row = data.draw(st.integers(0, count - 1), "row")
        column = data.draw(st.sampled_from(["n", "name", "at", "tags", "place"]), "column")
        if edit in ("lose", "double"):
            job.rewrite(path, (without if edit == "lose" else doubled)(row))
        elif edit in ("alter", "null"):
            new = {"n": -1, "name": "nobody", "at": 5, "tags": ["y"], "place": {"lat": -1.0, "lon": 0.5}}[column]
            job.rewrite(path, changed(row, column, new if edit == "alter" else None))
        elif edit == "truncate":
            path.write_bytes(path.read_bytes()[: data.draw(st.integers(0, path.stat().st_size - 1), "bytes")])
        elif edit == "delete":
            path.unlink()
        elif edit == "drop":
            job.drop(path)
        else:
            other = next(one for one in job.files() if one != path)
            mine, theirs = path.read_bytes(), other.read_bytes()
            path.write_bytes(theirs)
            other.write_bytes(mine)
        assert where(job.audit(full=True)), "nothing is red"


@given(
    st.lists(
        st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**64 - 1)), unique_by=lambda s: s[0]
    )
)
def test_spans_are_read_as_they_were_written(values: list[tuple[int, int, int]]) -> None:
    spans = Spans.of(sorted(values))
    assert list(decoded(encoded(spans))) == list(spans) == sorted(values)


def test_the_log_keeps_every_rewind(job: LiveJob, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.snapshot import epoch_log

    monkeypatch.setattr(epoch_log, "KEPT_RECORDS", 3)
    job.run(12)
    job.rewind()
    job.restart()
    job.run(12)
    job.log.trim(job.epoch)
    (rewind,) = read_ledger(str(job.folder), JOB).rewinds
    assert (rewind.epoch, rewind.back_to, rewind.hides) == (20, 11, True)
    assert not (job.folder / job.paths.log_record(5)).exists()
