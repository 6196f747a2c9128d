"""The code of a start is kept, and a job can be loaded from it after its files have changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.core.errors import JobError
from engine.host.launch import MasterLaunch
from engine.host.run_folder import RunFolder
from engine.host.upgrade_record import UpgradeRecord
from engine.protocol.upgrading import Phase, Progress
from engine.spark.code import KEPT, archive_of, check_code, keep_code, kept_code

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
    Path(back.code).unlink()
    with pytest.raises(JobError, match=r"aa\.zip.* is gone.*weir submit tests\.fakes:x --name shop"):
        check_code(back)
