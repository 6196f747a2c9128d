"""The code of a start is kept, and a job can be loaded from it after its files have changed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from engine.core.errors import JobError
from engine.host.launch import MasterLaunch
from engine.host.run_folder import RunFolder
from engine.host.upgrade_record import UpgradeRecord
from engine.protocol.upgrading import Phase, Progress
from engine.spark.code import KEPT, archive_of, as_kept, check_code, keep_code, kept_code

JOB = """
from engine.api import StreamEnvironment
from shop.tables import NAME

def job(env):
    env.from_elements([{"n": 1}], "n long", uid="numbers").to_spark_table(NAME, uid="out")
"""
LOAD = """
import sys
from engine.process.loading import load
from engine.host.launch import LaunchOptions
sys.path.append(sys.argv[1])  # slots get the search path of the JobMaster behind their own
print(dict(load(LaunchOptions(path="shop.job:job", code=sys.argv[1])).sinks)["out"].path)
"""


def loaded(folder: Path, code: str) -> str:
    done = subprocess.run([sys.executable, "-c", LOAD, code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_job_is_loaded_from_its_kept_code_after_its_files_have_changed(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text(JOB)
    (package / "tables.py").write_text('NAME = "before"')
    launch = MasterLaunch(path="shop.job:job", name="shop", store=str(tmp_path / "store"), max_slots=4, id="0a")
    RunFolder(launch.store, launch.name).prepare()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert kept_code(launch) == ""
    keep_code(launch)
    (package / "tables.py").write_text('NAME = "after"')
    assert loaded(tmp_path, "") == "after"
    assert loaded(tmp_path, kept_code(launch)) == "before"
    again = msgspec.structs.replace(launch, id="0b", code=kept_code(launch))
    keep_code(again)
    assert kept_code(again) == kept_code(launch) and not archive_of(again).exists()


@pytest.mark.promise("D8", "H8")
@pytest.mark.parametrize("edit", ["changed", "broken", "deleted"])
def test_a_slot_that_is_replaced_runs_the_code_of_its_start_whatever_is_in_the_files_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str
) -> None:
    """It loaded the edited files, was refused because it ran other code than its JobMaster, and the job stood still."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text(JOB)
    (package / "tables.py").write_text('NAME = "before"')
    launch = MasterLaunch(path="shop.job:job", name="shop", store=str(tmp_path / "store"), max_slots=4, id="0a")
    RunFolder(launch.store, launch.name).prepare()
    monkeypatch.syspath_prepend(str(tmp_path))
    keep_code(launch)
    kept = kept_code(launch)
    assert as_kept(launch, kept) is launch, "the files are as they were: errors name their lines"
    match edit:
        case "changed":
            (package / "tables.py").write_text('NAME = "after"')
        case "broken":
            (package / "job.py").write_text("def job(env:")
        case "deleted":
            (package / "tables.py").unlink()
    assert loaded(tmp_path, as_kept(launch, kept).code) == "before"
    keep_code(launch)  # the next JobMaster of this start
    assert kept_code(launch) == kept and loaded(tmp_path, kept) == "before", "an upgrade goes back to it"


def test_a_job_with_data_beside_its_code_runs_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shop_with_prices"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text(JOB)
    (package / "prices.csv").touch()
    launch = MasterLaunch(path="shop_with_prices.job:job", name="shop", store=str(tmp_path), max_slots=4, id="0a")
    RunFolder(launch.store, launch.name).prepare()
    monkeypatch.syspath_prepend(str(tmp_path))
    keep_code(launch)
    (package / "job.py").write_text(JOB + "# edited")
    assert as_kept(launch, kept_code(launch)) is launch
    (package / "prices.csv").unlink()
    assert as_kept(launch, kept_code(launch)).code == kept_code(launch)


@pytest.mark.parametrize("torn", ["cut short", "a part of it was never written"])
def test_an_archive_that_a_power_cut_has_torn_is_no_archive(tmp_path: Path, torn: str) -> None:
    launch = started(tmp_path, "aa")
    whole = archive_of(launch).read_bytes()
    with zipfile.ZipFile(archive_of(launch)) as zipped:
        largest = max(zipped.infolist(), key=lambda file: file.compress_size)
    middle = largest.header_offset + 100 + len(largest.filename)
    unwritten = whole[:middle] + bytes(512) + whole[middle + 512 :]
    archive_of(launch).write_bytes(whole[:100] if torn == "cut short" else unwritten)
    assert as_kept(launch, kept_code(launch)) is launch
    keep_code(launch)
    assert archive_of(launch).read_bytes() == whole


def test_what_is_in_an_archive_is_durable_before_the_archive_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade goes back to it, and later JobMasters run it: a power cut must not leave half of it."""
    synced: list[tuple[str, bool]] = []
    archive = tmp_path / "shop/run/code/aa.zip"
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), archive.exists()))
    )
    started(tmp_path, "aa")
    assert [(Path(path).parent, there) for path, there in synced] == [(archive.parent, False)]


def test_the_code_of_the_last_starts_is_kept_and_a_job_without_files_runs_without(tmp_path: Path) -> None:
    for number in range(KEPT + 2):
        launch = MasterLaunch(path="tests.fakes:x", name="shop", store=str(tmp_path), max_slots=4, id=f"0{number}")
        RunFolder(launch.store, launch.name).prepare()
        keep_code(launch)
    assert len(list(archive_of(launch).parent.iterdir())) == KEPT and kept_code(launch)
    keep_code(msgspec.structs.replace(launch, path="no_such_package.job:job", id="ff"))


def started(tmp_path: Path, id: str, code: str = "") -> MasterLaunch:
    """A start of the job, whose JobMaster keeps its code."""
    launch = MasterLaunch(path="tests.fakes:x", name="shop", store=str(tmp_path), max_slots=4, id=id, code=code)
    RunFolder(launch.store, launch.name).prepare()
    keep_code(launch)
    return launch


def test_the_code_that_an_upgrade_goes_back_to_stays_however_many_new_versions_fail(tmp_path: Path) -> None:
    old = started(tmp_path, "aa")
    code = kept_code(old)
    for number in range(KEPT + 2):
        back = msgspec.structs.replace(old, id=f"b{number}", code=kept_code(old))
        record = UpgradeRecord(
            id="1f",
            progress=Progress(Phase.STARTING, 7),
            old=old,
            new=msgspec.structs.replace(old, id=f"c{number}", code=""),
            back=back,
            savepoint="upgrade-1f",
            by="test",
            began_ms=0,
            changed_ms=0,
        )
        RunFolder(old.store, old.name).write_upgrade(record)
        started(tmp_path, f"c{number}")  # it fails, and the kept code is started again
        assert Path(back.code).exists()
        old = started(tmp_path, f"b{number}", code)
    assert len(list(archive_of(old).parent.iterdir())) == KEPT + 1


def test_a_start_whose_kept_code_is_gone_is_refused_because_the_files_may_hold_other_code(tmp_path: Path) -> None:
    launch = started(tmp_path, "aa")
    check_code(launch)
    back = msgspec.structs.replace(launch, id="bb", code=kept_code(launch))
    whole = Path(back.code).read_bytes()
    Path(back.code).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(JobError, match=r"aa\.zip.* is damaged.*weir submit tests\.fakes:x --name shop"):
        check_code(back)
    Path(back.code).unlink()
    with pytest.raises(JobError, match=r"aa\.zip.* is gone.*weir submit tests\.fakes:x --name shop"):
        check_code(back)
