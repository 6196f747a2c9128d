"""Goal: a real kill -9 on real Spark loses and doubles nothing, and a reader never sees part of an epoch.

Topology: the page-view job, two slots, every view to one table and windows to another; a reader in a Spark application
of its own. Faults: SIGKILL of a slot, of the JobMaster in the recovery from that, and of the supervisor, also at a step
of a checkpoint; a read-only store, and a cut between slots. The seed decides which slot and when. Checks: the drill's
figures, the causes in its record, the audit by Great Expectations, and that no process is left.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from assets.pageviews.drill import DRILL
from checks import drill as drill_module
from checks.audit import run_audit
from checks.drill import drills, run_drill
from checks.drilled import FAILPOINTS, DrillFailed
from checks.faults import happened, why_no_verdict
from checks.orders import Met, Orders
from checks.reader import Read
from checks.results import AuditResult, Verdict
from checks.spec import AUDIT_CHECKS, DRILLS_KEPT, WARNINGS
from engine.api import StreamEnvironment
from engine.connectors.delta import DeltaSink
from engine.connectors.generator import GeneratorSource
from engine.core.errors import WeirError
from engine.jobmaster.events import AttemptFailed
from engine.store.failpoints import Point

WEIR = [sys.executable, "-c", "from engine.cli.main import main; main()"]


def mentions(text: str) -> list[str]:
    """Returns the command lines of processes that contain this text."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command and folder.name != str(os.getpid()):
            found.append(command[:200])
    return found


@pytest.fixture
def no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that are not about readers: starting their Spark takes long."""

    class NoReader(drill_module._Reader):
        def start(self) -> None:
            self._reads.touch()

        def check_alive(self) -> None: ...

        def stop(self) -> list[Read]:
            return []

    monkeypatch.setattr(drill_module, "_Reader", NoReader)


@pytest.mark.promise("A1", "D11", "G1", "H2", "H3")
def test_a_worker_killed_at_a_random_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    environ = {**os.environ, "WEIR_STORE": str(tmp_path), "COLUMNS": "180", "NO_COLOR": "1"}
    run = subprocess.run(
        [*WEIR, "drill", "assets.pageviews.job:job", "--seed", "7"],
        capture_output=True,
        text=True,
        env=environ,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "kill -9" in run.stdout and "records flow again" in run.stdout
    assert "pageviews: passed, 12 of 12 expectations evaluated" in run.stdout
    (drilled,) = drills(tmp_path, "pageviews")
    folder = Path(drilled.store)
    assert (
        drilled.records == 200_000 and drilled.names == ["slot-killed"] and drilled.restarts == 1 and drilled.seed == 7
    )
    assert 0 < drilled.recovery_s < 15
    (victim,) = drilled.faults
    (failed,) = [event for event in happened(folder, "pageviews") if isinstance(event, AttemptFailed)]
    assert (failed.attempt, failed.slot, failed.cause) == (victim.attempt, victim.slot, "slot_lost")
    assert drilled.reader_violations == [] and drilled.verdict is Verdict.PASSED
    audit = msgspec.json.decode((folder / "audit.json").read_bytes(), type=AuditResult)
    # A file that the killed worker wrote and no epoch published may be left: that is a warning.
    wanted = dict.fromkeys(AUDIT_CHECKS.keys() - WARNINGS, Verdict.PASSED)
    assert {check.name: check.verdict for check in audit.checks if check.name in wanted} == wanted
    assert audit.verdict is Verdict.PASSED
    assert audit.figures["rows"] == audit.figures["records"] == 200_000
    assert audit.figures["lost"] == audit.figures["duplicated"] == audit.figures["phantom"] == 0
    assert audit.epoch == drilled.checkpoints >= 5
    assert Path(audit.data_docs).is_file()
    reads = [msgspec.json.decode(line, type=Read) for line in (folder / "reads.jsonl").read_bytes().splitlines()]
    assert len(reads) == drilled.reader_reads
    assert len({read.rows for read in reads if read.table == "views"}) >= 4, "it hardly read while the job ran"
    assert mentions(str(tmp_path)) == [], "processes outlived the drill"


@pytest.mark.promise("D11", "F2", "H2")
def test_a_fault_in_recovery_and_the_death_of_the_supervisor_are_told_by_the_history(
    tmp_path: Path, no_reader: None
) -> None:
    said: list[str] = []
    drilled = run_drill(
        DRILL, tmp_path, seed=3, faults=["jobmaster-killed-in-recovery", "supervisor-killed"], progress=said.append
    )
    folder = Path(drilled.store)
    slot, master, supervisor = drilled.faults
    assert slot.cause.startswith("slot_lost: ") and str(slot.pid) in slot.cause
    assert "SIGKILL" in master.cause and supervisor.cause == "its supervisor has died"
    assert slot.attempt == "1.1" and master.generation < supervisor.generation < int(supervisor.after.split(".")[0])
    assert 0 < slot.recovery_s == master.recovery_s < 120 and 0 < supervisor.recovery_s < 120
    assert any("resumed, as `weir resume` and Dagster's sensor do" in line for line in said)
    assert why_no_verdict(drilled.faults, happened(folder, "pageviews")) == ""
    assert mentions(str(tmp_path)) == [], "processes outlived the drill"


@pytest.mark.promise("D11", "F2", "H2")
def test_steps_savepoints_rescales_the_store_and_a_cut_are_told_by_history_and_failpoints(
    tmp_path: Path, no_reader: None
) -> None:
    names = [
        "slot-killed-before-ack",
        "slot-killed-in-savepoint",
        "rescale",
        "store-read-only",
        "slots-cut",
        "jobmaster-killed-after-record",
    ]
    drilled = run_drill(DRILL, tmp_path, seed=5, faults=names)
    folder = Path(drilled.store)
    assert drilled.names == names
    slot, savepoint, in_savepoint, narrower, wider, store, cut, master = drilled.faults
    assert slot.cause.startswith("slot_lost: ") and str(slot.pid) in slot.cause and slot.point == "before-ack"
    assert store.cause.startswith(("write_failed: ", "finalize_failed: ")) and "Read-only" in store.cause
    assert savepoint.cause.startswith("savepoint ") and str(in_savepoint.pid) in in_savepoint.cause
    assert narrower.cause.endswith(": completed") and wider.cause.endswith(": completed")
    assert narrower.cause != wider.cause, "two rescales"
    assert "has been silent for" in cut.cause and cut.until_ms > cut.at_ms
    assert "SIGKILL" in master.cause and master.point == "after-record"
    assert Orders(folder / FAILPOINTS).met(Point.AFTER_RECORD) == [Met(master.pid, master.at_ms)]
    assert why_no_verdict(drilled.faults, happened(folder, "pageviews")) == ""
    audited = run_audit(DRILL, folder)
    red = [check for check in audited.checks if check.verdict is not Verdict.PASSED and not check.only_warns]
    assert red == [] and audited.figures["rows"] == audited.figures["records"] == drilled.records
    assert mentions(str(tmp_path)) == [], "processes outlived the drill"


def with_a_lake(env: StreamEnvironment) -> None:
    rows, lake = int(env.params.get("rows", "1")), env.params.get("lake", "/lake/orders")
    numbers = env.from_source(GeneratorSource(lambda n: {"n": n}, rows=rows), "n long", uid="in")
    numbers.sink_to(DeltaSink(lake), uid="lake")


@pytest.mark.promise("H2")
def test_a_job_whose_copy_would_write_where_it_writes_itself_is_not_drilled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(DRILL, path=f"{__name__}:with_a_lake", records_param="rows", params={})
    with pytest.raises(WeirError, match=r"sink 'lake' writes to the Delta table '/lake/orders', in a drill too"):
        run_drill(spec, tmp_path, seed=1)
    assert list(tmp_path.iterdir()) == []

    def begins(store: Path, job: str, seed: int) -> Path:
        raise FileExistsError(job)

    monkeypatch.setattr(drill_module, "_new_folder", begins)
    with pytest.raises(FileExistsError):  # it goes on
        run_drill(replace(spec, params={"lake": "/lake/of-drills"}), tmp_path, seed=1)


@pytest.mark.promise("H2")
def test_a_job_that_can_not_run_makes_no_drill_and_leaves_no_process(tmp_path: Path, no_reader: None) -> None:
    spec = replace(DRILL, params={**DRILL.params, "interval": "never"})
    with pytest.raises(DrillFailed, match=r"the job failed: .*never.* its log is"):
        run_drill(spec, tmp_path, seed=1)
    assert drills(tmp_path, "pageviews") == []
    assert mentions(str(tmp_path)) == []


def test_the_folders_of_the_newest_drills_are_kept_and_older_ones_deleted(tmp_path: Path) -> None:
    """A drill every week must not fill the disk."""
    parent = tmp_path / "drills" / "pageviews"
    for week in range(DRILLS_KEPT + 2):
        folder = parent / f"2026{week:04}T033000.000-seed1"
        folder.mkdir(parents=True)
        (folder / "drill.json").write_text("{}")
    made = drill_module._new_folder(tmp_path, "pageviews", 7)
    kept = sorted(path.name for path in parent.iterdir())
    assert len(kept) == DRILLS_KEPT and kept[-1] == made.name and kept[0].startswith("20260003T")
