"""Goal: a drill strikes what it says, and only a fault that the history names as the cause gives a verdict.

The catalogue and the matching are pure. The blows are tried on processes of the test's own.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from assets.pageviews.drill import DRILL
from checks.catalogue import CATALOGUE, RANDOM, Blow, Ends, Fault, How, NoSuchFault, choose
from checks.drill import announced, records_for
from checks.faults import Happened, cause_of, why_no_verdict
from checks.orders import Orders
from checks.processes import PROCESSES, JobProcesses, Role, process, role_of
from checks.results import Struck
from checks.strikes import NotStruck, Striker
from engine.jobmaster.events import (
    Aborted,
    AttemptFailed,
    Claimed,
    Rescaled,
    RescaleStarted,
    SavepointCompleted,
    SavepointTriggered,
    Stopped,
)
from engine.jobmaster.status import JobStatus, SlotStatus
from engine.store.failpoints import Point
from tests.seen import running

LOST = AttemptFailed(
    attempt="1.1", cause="slot_lost", detail="slot process 4711: its process ended", slot=1, at_ms=1_100, generation=1
)
SAVING = SavepointTriggered(name="s", place="p", checkpoint=7, stopping="", at_ms=1_050, generation=1)
SAVED = SavepointCompleted(
    name="s", place="p", checkpoint=7, epoch=6, state_bytes=1, duration_ms=1.0, at_ms=1_100, generation=1
)
RESCALING = RescaleStarted(
    rescale="r", before={"pv": 2}, after={"pv": 1}, slots_before=2, slots_after=1, at_ms=1_050, generation=1
)
RESCALED = Rescaled(
    rescale="r", epoch=7, pause_ms=1.0, digest_before="d", digest_after="d", rows=3, at_ms=1_100, generation=1
)
SILENT = msgspec.structs.replace(LOST, cause="slot_silent", detail="slot process 4711")


def claimed(death: str, generation: int = 2, at_ms: int = 1_500) -> Claimed:
    return Claimed(death=death, generation=generation, at_ms=at_ms)


def struck(fault: str, blow: int = 0, **changes: object) -> Struck:
    """Returns a blow at 1,000 ms whose job recovered after two seconds."""
    victim = CATALOGUE[fault].blows[blow].victim
    slot = 1 if victim is Role.SLOT and CATALOGUE[fault].blows[blow].how is not How.FULL else None
    at = CATALOGUE[fault].blows[blow].at
    point = at.value if at is not None else ""
    made = Struck(slot, 4711, 1_000, 6, "1.1", fault, blow, victim.value, 3_000, "1.2", recovery_s=2.0, point=point)
    return msgspec.structs.replace(made, **changes)


# --- the catalogue ---


@pytest.mark.promise("H2")
def test_every_process_can_be_killed_stopped_and_hung() -> None:
    told = {(blow.victim, blow.how) for fault in CATALOGUE.values() for blow in fault.blows}
    processes = set(PROCESSES)
    assert {(role, How.KILL) for role in processes} <= told
    assert {(role, How.STOP) for role in processes} <= told
    for fault in CATALOGUE.values():
        assert fault.name and fault.does and fault.recovery and fault.cause, fault
        assert len(fault.blows) <= 2 and any(blow.cause.ends is not Ends.COVERED for blow in fault.blows)


@pytest.mark.promise("H2")
def test_each_step_of_a_checkpoint_of_its_publication_and_of_its_commit_can_be_the_last() -> None:
    steps = list(Point)[: list(Point).index(Point.FILE_WRITE)]
    killed = {blow.at for fault in CATALOGUE.values() for blow in fault.blows if blow.how is How.KILL_AT}
    assert killed == set(steps)
    lasting = {blow.at for fault in CATALOGUE.values() for blow in fault.blows if blow.at is not None} - killed
    assert lasting == {Point.FILE_WRITE, Point.FILE_SYNC, Point.CHANNEL}, "read-only, slow, cut"


@pytest.mark.promise("H2")
def test_the_seed_draws_the_random_faults() -> None:
    drawn = [tuple(fault.name for fault in choose([RANDOM, RANDOM], seed)) for seed in range(200)]
    assert drawn == [tuple(fault.name for fault in choose([RANDOM, RANDOM], seed)) for seed in range(200)]
    assert {name for names in drawn for name in names} == set(CATALOGUE), "the seeds reach every fault"
    assert [fault.name for fault in choose(["jvm-killed", "slot-hung"], 1)] == ["jvm-killed", "slot-hung"]
    with pytest.raises(NoSuchFault, match=r"no fault 'slot-eaten'; there are slot-killed, .*, and random"):
        choose(["slot-eaten"], 1)


@pytest.mark.promise("H2")
def test_a_drill_says_beforehand_what_it_will_do_and_has_records_enough_for_it() -> None:
    hung, killed = CATALOGUE["slot-hung"], CATALOGUE["slot-killed"]
    (first, second) = announced([killed, hung])
    assert "kills one slot with SIGKILL" in first and "slot_lost" in first and "slot_silent" in second
    assert records_for(DRILL, [killed]) == 200_000
    meanwhile = records_for(DRILL, [killed, hung]) - 300_000
    assert meanwhile >= 10 * DRILL.records_per_s, "the job does not end while its slot hangs"


@pytest.mark.promise("H2")
def test_the_table_of_the_docs_is_the_catalogue() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "drills.md").read_text()
    for fault in CATALOGUE.values():
        assert f"| `{fault.name}` | {fault.does} | {fault.cause} | {fault.recovery} |\n" in docs, fault.name


# --- the cause ---

NAMED: dict[str, tuple[list[Struck], list[Happened]]] = {
    "a killed slot": ([struck("slot-killed")], [LOST]),
    "a slot that hung": ([struck("slot-hung")], [SILENT]),
    "a stopped slot": ([struck("slot-stopped")], []),
    "a killed daemon": ([struck("daemon-killed")], []),
    "a killed JobMaster": ([struck("jobmaster-killed")], [claimed("signal SIGKILL while it was running the job")]),
    "a JobMaster that hung": (
        [struck("jobmaster-hung")],
        [claimed("it gave no sign of life for 30 s while it was running the job, and was killed")],
    ),
    "a killed JVM": ([struck("jvm-killed")], [LOST, claimed("Spark's JVM is gone: Py4JNetworkError: no answer")]),
    "a killed JVM that its slots' job noticed first": (
        [struck("jvm-killed")],
        [claimed("SparkLost: the Spark job of the slots failed: [Errno 111] Connection refused")],
    ),
    "a JVM that hung": ([struck("jvm-hung")], [claimed("Spark's JVM did not answer for 30 s")]),
    "a killed supervisor": (
        [struck("supervisor-killed")],
        [Stopped(outcome="cancelled", reason="its supervisor has died", at_ms=1_900, generation=1), claimed("")],
    ),
    "a full disk": ([struck("slots-disk-full")], [Aborted(checkpoint=7, why="write_failed", detail="", at_ms=2_000)]),
    "a full disk, for a job that tolerates no failed checkpoint": (
        [struck("slots-disk-full")],
        [
            Aborted(checkpoint=7, why="write_failed", detail="", at_ms=2_000),
            msgspec.structs.replace(LOST, cause="checkpoints_failed", detail="can't write"),
        ],
    ),
    "a read-only store": (
        [struck("store-read-only")],
        [
            Aborted(checkpoint=7, why="finalize_failed", detail="", at_ms=2_000),
            msgspec.structs.replace(LOST, cause="commit_failed", detail="can't write x: Read-only file system"),
        ],
    ),
    "a slow store": ([struck("store-slow")], []),
    "a cut": (
        [struck("slots-cut")],
        [
            msgspec.structs.replace(
                LOST, cause="runtime", detail="channel a[0]->b[1] broke: its sender has been silent for 10.0 s"
            )
        ],
    ),
    "a slot at a step": ([struck("slot-killed-before-ack")], [LOST]),
    "a JobMaster at a step": (
        [struck("jobmaster-killed-after-record")],
        [claimed("signal SIGKILL while it was running the job")],
    ),
    "a daemon and a slot": ([struck("daemon-and-slot-killed"), struck("daemon-and-slot-killed", 1)], [LOST]),
    "a JobMaster and a slot": (
        [struck("jobmaster-and-slot-killed"), struck("jobmaster-and-slot-killed", 1)],
        [claimed("signal SIGKILL while it was running the job")],
    ),
    "a savepoint": ([struck("savepoint")], [SAVED]),
    "an upgrade": (
        [struck("upgrade")],
        [
            Stopped(
                outcome="stopped",
                reason="behind epoch 9, with the savepoint /s/a/savepoints/upgrade-1f",
                at_ms=1_900,
                generation=1,
            ),
            claimed(""),
        ],
    ),
    "a slot in a savepoint": (
        [struck("slot-killed-in-savepoint"), struck("slot-killed-in-savepoint", 1)],
        [SAVING, LOST],
    ),
    "a rescale and back": (
        [struck("rescale"), struck("rescale", 1, at_ms=1_200)],
        [RESCALED, msgspec.structs.replace(RESCALED, at_ms=1_300)],
    ),
    "a JobMaster in a rescale": (
        [struck("jobmaster-killed-in-rescale"), struck("jobmaster-killed-in-rescale", 1)],
        [RESCALING, claimed("signal SIGKILL while it was running the job")],
    ),
    "a JobMaster in a recovery": (
        [struck("jobmaster-killed-in-recovery"), struck("jobmaster-killed-in-recovery", 1, attempt="1.1")],
        [LOST, claimed("signal SIGKILL while it was running the job")],
    ),
}


@pytest.mark.promise("H2")
@pytest.mark.parametrize("case", NAMED)
def test_a_fault_that_the_history_names_gives_a_verdict(case: str) -> None:
    faults, events = NAMED[case]
    assert why_no_verdict(faults, events) == ""


def needs_a_cause(struck: Struck) -> bool:
    return CATALOGUE[struck.fault].blows[struck.blow].cause.ends not in (Ends.NOTHING, Ends.COVERED)


UNNAMED = {case: told for case, told in NAMED.items() if any(map(needs_a_cause, told[0]))}


@pytest.mark.promise("H2")
@pytest.mark.parametrize("case", UNNAMED)
def test_a_fault_that_the_history_does_not_know_gives_no_verdict(case: str) -> None:
    faults, _ = UNNAMED[case]
    assert "the fault did not happen" in why_no_verdict(faults, [])


WRONG: dict[str, tuple[Struck, Happened]] = {
    "another slot": (struck("slot-killed", slot=0), LOST),
    "another process": (struck("slot-killed", pid=471), LOST),
    "a slot that hung instead": (struck("slot-killed"), SILENT),
    "a slot that was lost instead": (struck("slot-hung"), LOST),
    "a JobMaster that went by itself": (
        struck("jobmaster-killed"),
        claimed("exit code 1 while it was running the job"),
    ),
    "a JobMaster instead of its JVM": (struck("jvm-killed"), claimed("signal SIGKILL while it was running the job")),
    "a JVM that died instead of hanging": (struck("jvm-hung"), claimed("Spark's JVM is gone: no answer")),
    "a slot that was lost while a savepoint was taken": (struck("savepoint"), LOST),
    "a job that somebody stopped in an upgrade": (
        struck("upgrade"),
        Stopped(outcome="stopped", reason="behind epoch 9, with the savepoint /upgrade-s/s", at_ms=1_900),
    ),
    "a JobMaster that died in a rescale that was to be done": (struck("rescale"), claimed("signal SIGKILL")),
    "a slot that was lost during a cut": (struck("slots-cut"), LOST),
    "another process than the one that met the step": (struck("slot-killed-before-ack", pid=471), LOST),
    "a slot that was lost while the store was read-only": (struck("store-read-only"), LOST),
    "a slot that was lost while the disk was full": (struck("slots-disk-full"), LOST),
    "a job that somebody cancelled": (
        struck("supervisor-killed"),
        Stopped(outcome="cancelled", reason="cancelled by cli", at_ms=1_900, generation=1),
    ),
}


@pytest.mark.promise("H2")
@pytest.mark.parametrize("case", WRONG)
def test_a_restart_with_another_cause_than_the_victim_gives_no_verdict(case: str) -> None:
    victim, event = WRONG[case]
    assert "restarted for another cause: " in why_no_verdict([victim], [event])


@pytest.mark.promise("H2")
@pytest.mark.parametrize("event", [LOST, claimed("signal SIGSEGV")])
@pytest.mark.parametrize(
    "fault", ["slot-stopped", "daemon-killed", "jobmaster-stopped", "supervisor-stopped", "store-slow"]
)
def test_a_restart_where_none_was_expected_gives_no_verdict(fault: str, event: Happened) -> None:
    assert "was to go on without" in why_no_verdict([struck(fault)], [event])
    later = msgspec.structs.replace(event, at_ms=9_000)
    assert why_no_verdict([struck(fault)], [later]) == "", "the next fault of the same drill ended the attempt"


@pytest.mark.promise("H2")
def test_a_checkpoint_that_failed_before_or_long_after_a_full_disk_is_not_its_work() -> None:
    for at_ms in (900, 9_000):
        event = Aborted(checkpoint=7, why="write_failed", detail="", at_ms=at_ms)
        assert cause_of(struck("slots-disk-full"), [event]) == ""


def test_the_claim_of_the_victim_itself_is_not_that_of_its_successor() -> None:
    first = claimed("signal SIGKILL of an earlier JobMaster", generation=1, at_ms=10)
    assert "the fault did not happen" in why_no_verdict([struck("jobmaster-killed")], [first])


@pytest.mark.promise("H2")
def test_a_blow_at_a_step_that_nobody_met_there_gives_no_verdict() -> None:
    elsewhere = msgspec.structs.replace(struck("slot-killed-before-ack"), point="")
    assert "did not meet it at before-ack" in why_no_verdict([elsewhere], [LOST])


def test_a_fault_of_another_version_gives_no_verdict() -> None:
    unknown = msgspec.structs.replace(struck("slot-killed"), fault="slot-eaten")
    assert "no fault of this version's catalogue" in why_no_verdict([unknown], [LOST])


# --- the blows ---


@pytest.fixture
def processes() -> JobProcesses:
    return JobProcesses()


@pytest.fixture
def sleeper(processes: JobProcesses) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes to a file all the time, and counts how often that failed."""
    code = """
import sys, time
failed = 0
while True:
    try:
        with open(sys.argv[1], "wb", buffering=0) as file:
            file.write(b"x")
    except OSError:
        print("no", flush=True)
    else:
        print("yes", flush=True)
    time.sleep(0.01)
"""
    with processes.marking():
        started = subprocess.Popen(
            [sys.executable, "-c", code, f"/tmp/weir-test-{os.getpid()}"], stdout=subprocess.PIPE, bufsize=0
        )
    assert started.stdout is not None and started.stdout.readline() == b"yes\n"
    yield started
    started.kill()
    started.wait()
    Path(f"/tmp/weir-test-{os.getpid()}").unlink(missing_ok=True)


def seen_with(pid: int) -> JobStatus:
    return msgspec.structs.replace(running("pageviews"), slots=[SlotStatus(1, pid, "", 1)])


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.promise("H2")
def test_a_killed_victim_is_dead_and_recorded(
    sleeper: subprocess.Popen[bytes], processes: JobProcesses, tmp_path: Path
) -> None:
    striker = Striker(processes, random.Random(1), Orders(tmp_path))
    victim = striker.strike(CATALOGUE["slot-killed"], 0, seen_with(sleeper.pid))
    assert (victim.slot, victim.pid, victim.victim, victim.fault) == (1, sleeper.pid, "slot", "slot-killed")
    assert process(sleeper.pid) is None and sleeper.wait(60) == -9


@pytest.mark.promise("H2")
def test_a_stopped_victim_stays_stopped_until_it_is_let_go(
    sleeper: subprocess.Popen[bytes], processes: JobProcesses, tmp_path: Path
) -> None:
    striker = Striker(processes, random.Random(1), Orders(tmp_path))
    striker.strike(CATALOGUE["slot-stopped"], 0, seen_with(sleeper.pid))
    victim = process(sleeper.pid)
    assert victim is not None and victim.state == "T" and not striker.let_go(due_only=True)
    assert striker.let_go() and striker.held == []
    eventually(lambda: victim.state != "T")


@pytest.mark.promise("H2")
def test_a_hang_that_somebody_ended_gives_no_verdict(
    sleeper: subprocess.Popen[bytes], processes: JobProcesses, tmp_path: Path
) -> None:
    fault = CATALOGUE["slot-stopped"]
    short = replace(fault, blows=(replace(fault.blows[0], lasts_s=1e-9),))
    striker = Striker(processes, random.Random(1), Orders(tmp_path))
    striker.strike(short, 0, seen_with(sleeper.pid))
    os.kill(sleeper.pid, 18)
    victim = process(sleeper.pid)
    assert victim is not None
    eventually(lambda: victim.state != "T")
    with pytest.raises(NotStruck, match="went on before it was let go"):
        striker.let_go(due_only=True)


@pytest.mark.promise("H2")
def test_no_write_succeeds_while_the_disk_is_full(
    sleeper: subprocess.Popen[bytes], processes: JobProcesses, tmp_path: Path
) -> None:
    assert sleeper.stdout is not None
    said = sleeper.stdout
    striker = Striker(processes, random.Random(1), Orders(tmp_path))
    assert striker.strike(CATALOGUE["slots-disk-full"], 0, seen_with(sleeper.pid)).slot is None
    while said.readline() != b"no\n":
        pass
    assert [said.readline() for _ in range(5)] == [b"no\n"] * 5
    striker.let_go()
    while said.readline() != b"yes\n":
        pass
    assert [said.readline() for _ in range(5)] == [b"yes\n"] * 5


@pytest.mark.promise("H2")
def test_a_victim_that_ended_by_itself_before_it_was_struck_gives_no_verdict(
    processes: JobProcesses, tmp_path: Path
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    striker = Striker(processes, random.Random(1), Orders(tmp_path))
    with pytest.raises(NotStruck, match=rf"no verdict: slot 1 \(process {ended.pid}\) had ended by itself"):
        striker.strike(CATALOGUE["slot-killed"], 0, seen_with(ended.pid))
    with pytest.raises(NotStruck, match="the job has no JobMaster on this machine"):
        striker.strike(CATALOGUE["jobmaster-killed"], 0, seen_with(ended.pid))


def test_the_seed_decides_which_slot_is_struck(processes: JobProcesses, tmp_path: Path) -> None:
    status = msgspec.structs.replace(seen_with(0), slots=[SlotStatus(n, os.getpid(), "", n) for n in range(8)])
    blow = Fault("", "", "", (Blow(Role.SLOT, How.KILL, CATALOGUE["slot-killed"].blows[0].cause),)).blows[0]
    chosen = [Striker(processes, random.Random(seed), Orders(tmp_path))._victims(blow, status)[0] for seed in range(40)]
    assert chosen == [
        Striker(processes, random.Random(seed), Orders(tmp_path))._victims(blow, status)[0] for seed in range(40)
    ]
    assert len(set(chosen)) == 8


def test_the_processes_of_a_job_are_known_by_their_mark_also_when_their_parent_is_dead(
    processes: JobProcesses, tmp_path: Path
) -> None:
    assert processes.all() == [] and JobProcesses.VARIABLE not in os.environ
    child = "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    with processes.marking():
        subprocess.run([sys.executable, "-c", child], check=True)
    (orphan,) = processes.all()
    assert role_of(orphan.pid) is None and processes.of(Role.SLOT) == []
    assert processes.end(patience_s=0.2) == [orphan.pid]
    eventually(lambda: processes.all() == [])
