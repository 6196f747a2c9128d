"""Goal: the source-side ledger and the job's own history, with which an audit compares, are complete or refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from checks import ledger
from checks.history import (
    KEPT,
    HistoryIncomplete,
    equations,
    keep_newest,
    per_epoch,
    read_epochs,
    recorded_epochs,
)
from checks.ledger import LedgerUnusable, open_ledger, write_ledger
from checks.spec import AuditedTable, NoDrill, load_spec
from checks.tablelog import epoch_files
from tests.checks import small
from tests.checks.small import EPOCHS, PER_EPOCH, RECORDS, SPEC


def test_the_ledger_holds_every_record_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "RECORDS_PER_FILE", 400)
    write_ledger(SPEC, tmp_path, 1_000)
    seal, files = open_ledger(tmp_path)
    assert seal.records == 1_000 and [file.records for file in seal.files] == [400, 400, 200]
    numbers = np.concatenate([pq.read_table(file).column("view_id").to_numpy() for file in files])
    assert numbers.tolist() == list(range(1_000))


def test_the_ledger_has_the_types_of_the_table(tmp_path: Path) -> None:
    write_ledger(SPEC, tmp_path, 10)
    assert pq.read_table(open_ledger(tmp_path)[1][0]).schema.remove_metadata() == SPEC.rows.arrow_schema


def test_a_ledger_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="proves nothing"):
        write_ledger(SPEC, tmp_path, 0)


def test_a_ledger_that_was_not_sealed_is_none(tmp_path: Path) -> None:
    write_ledger(SPEC, tmp_path, 10)
    (tmp_path / "ledger" / "_seal.json").unlink()
    with pytest.raises(LedgerUnusable, match="there is no ledger"):
        open_ledger(tmp_path)


def test_a_missing_file_of_the_ledger_is_noticed(tmp_path: Path) -> None:
    write_ledger(SPEC, tmp_path, 10)
    (tmp_path / "ledger" / "records-00000.parquet").unlink()
    with pytest.raises(LedgerUnusable, match="is missing"):
        open_ledger(tmp_path)


def test_records_without_a_column_of_the_table_are_an_error(tmp_path: Path) -> None:
    spec = replace(SPEC, make=lambda n: {"view_id": n})
    with pytest.raises(LedgerUnusable, match="no column 'app_id'"):
        write_ledger(spec, tmp_path, 10)


@pytest.mark.promise("H1")
def test_history_has_every_epoch_and_its_equations_hold(tmp_path: Path) -> None:
    small.build(tmp_path / "drill")
    epochs = read_epochs(tmp_path / "drill", SPEC.job)
    assert [one.epoch for one in epochs] == list(range(1, EPOCHS + 1))
    assert all(added["sink:raw"] == PER_EPOCH for _, added in per_epoch(epochs))
    found = equations(SPEC, epochs, RECORDS)
    assert len(found) == 5 * EPOCHS + 1 and all(equation.holds for equation in found)
    assert all(-(1 << 63) <= equation.left < 1 << 63 for equation in found)  # Spark's long holds it
    (broken,) = [equation for equation in equations(SPEC, epochs, RECORDS + 1) if not equation.holds]
    assert (broken.epoch, broken.left, broken.right) == (0, RECORDS, RECORDS + 1)


@pytest.mark.promise("H1")
def test_rows_dropped_as_late_break_an_equation(tmp_path: Path) -> None:
    small.build(tmp_path / "drill")
    epochs = read_epochs(tmp_path / "drill", SPEC.job)
    late = [replace(one, totals={**one.totals, "late:pv": 3 if one.epoch > 6 else 0}) for one in epochs]
    (broken,) = [equation for equation in equations(SPEC, late, RECORDS) if not equation.holds]
    assert (broken.epoch, broken.what, broken.left) == (7, "rows dropped as late by pv = 0", 3)


@pytest.mark.promise("H3")
def test_another_row_in_the_place_of_one_that_was_read_breaks_an_equation(tmp_path: Path) -> None:
    """One row lost and another doubled: the counts agree, the digests do not."""
    small.build(tmp_path / "drill")
    epochs = read_epochs(tmp_path / "drill", SPEC.job)
    name = f"digest:{SPEC.rows.uid}"
    wrong = [replace(one, totals={**one.totals, name: one.totals[name] + (one.epoch > 6)}) for one in epochs]
    (broken,) = [equation for equation in equations(SPEC, wrong, RECORDS) if not equation.holds]
    assert (broken.epoch, broken.what) == (
        7,
        f"digest of rows read by {SPEC.source_uid} = digest of rows written by {SPEC.rows.uid}",
    )


def test_the_newest_epoch_is_known_from_its_manifest_even_if_no_event_was_written(tmp_path: Path) -> None:
    small.build(tmp_path / "drill")
    events = tmp_path / "drill" / small.PATHS.history("events.jsonl")
    lines = events.read_text().splitlines()
    events.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40])
    epochs = read_epochs(tmp_path / "drill", SPEC.job)
    assert epochs[-1].totals == json.loads(lines[-1])["ledger"]


def test_an_epoch_is_known_that_a_killed_jobmaster_published_and_did_not_write_down(tmp_path: Path) -> None:
    """Its manifest is deleted later, so the drill keeps its totals while no JobMaster runs."""
    folder = tmp_path / "drill"
    small.build(folder)
    events = folder / small.PATHS.history("events.jsonl")
    lines = events.read_text().splitlines()
    events.write_text("\n".join(lines[:-1]) + "\n")
    keep_newest(folder, SPEC.job)
    for manifest in folder.rglob("manifest.json"):
        manifest.write_text("deleted")
    assert recorded_epochs(folder, SPEC.job)[small.EPOCHS].totals == json.loads(lines[-1])["ledger"]
    (folder / KEPT).unlink()
    assert small.EPOCHS not in recorded_epochs(folder, SPEC.job)


def test_an_older_epoch_without_a_record_is_said(tmp_path: Path) -> None:
    small.build(tmp_path / "drill")
    events = tmp_path / "drill" / small.PATHS.history("events.jsonl")
    events.write_text("\n".join(events.read_text().splitlines()[2:]))
    with pytest.raises(HistoryIncomplete, match="no record of epoch 1, 2"):
        read_epochs(tmp_path / "drill", SPEC.job)


def test_a_store_without_epochs_is_said(tmp_path: Path) -> None:
    with pytest.raises(HistoryIncomplete, match="published no epoch"):
        read_epochs(tmp_path, SPEC.job)


def test_the_tables_log_tells_the_files_of_each_epoch_also_behind_a_record_that_repeats_all(tmp_path: Path) -> None:
    small.build(tmp_path / "drill")
    files = epoch_files(tmp_path / "drill" / small.PATHS.table("views"))
    assert sorted(files) == list(range(1, EPOCHS + 1))
    assert all(len(names) == 2 for names in files.values())
    assert len({name for names in files.values() for name in names}) == 2 * EPOCHS


@pytest.mark.parametrize("job", ["pageviews", "assets.pageviews.job:job"])
def test_a_jobs_drill_is_found_by_its_name_and_by_its_path(job: str) -> None:
    spec = load_spec(job)
    assert (
        spec.job == "pageviews"
        and spec.rows.name == "views"
        and spec.aggregates.values == ("window_end", "pv", "bytes")
    )
    assert spec.launch_params(7)["rows"] == "7" and spec.launch_params(7)["raw"] == "true"


def test_a_drill_in_the_current_folder_is_found_also_by_an_installed_weir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of a virtualenv has no current folder in its path, unlike `python -m`."""
    package = tmp_path / "newcomers_shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "drill.py").write_text("from assets.pageviews.drill import DRILL as DRILL\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    assert load_spec("newcomers_shop.job:job").job == "pageviews"


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ("nosuchjob", "job 'nosuchjob' does not say how it can be drilled: there is no module assets.nosuchjob.drill"),
        ("tests.cluster.jobs:windows", "there is no module tests.cluster.drill"),
        ("tests.checks.broken.job:job", "needs the module 'nosuchlibrary'"),
    ],
)
def test_a_job_without_a_drill_is_one_clear_error(
    job: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "broken"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "drill.py").write_text("import nosuchlibrary\n")
    import tests.checks

    monkeypatch.setattr(tests.checks, "__path__", [*tests.checks.__path__, str(tmp_path)])
    with pytest.raises(NoDrill, match=says):
        load_spec(job)


def test_keys_must_be_columns() -> None:
    with pytest.raises(ValueError, match="needs keys that are columns"):
        AuditedTable("t", "out", "a long", ("b",))
