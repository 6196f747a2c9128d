"""The steps of an upgrade as they are carried out: what is written down, started and fenced (D8)."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from engine.cli.shared import unfinished_upgrade
from engine.core.errors import NotRunning, SavepointExists, StoreError, WeirError
from engine.core.paths import JobPaths
from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterExit, RunFolder
from engine.host.upgrade_record import UpgradeRecord
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.observe.savepoints import StopRecord
from engine.process import upgrading
from engine.process.resume import Wanted, carry_on_upgrade, look
from engine.protocol.failures import Raised
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Manifest
from engine.protocol.upgrading import Phase, Progress
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.savepoints import SavepointFolder
from engine.store.below import Below
from engine.store.directory import DirectoryStore

RAISED = Raised("KeyError", "'user'", "job.py:7")
LOST_SUPERVISOR = MasterExit(Outcome.CANCELLED, "cancelled")  # and nobody has wished it


class World:
    """A job in a real store, whose processes are only said to run. It is also the client that the command asks."""

    def __init__(self, folder: Path) -> None:
        self.store, self.name = str(folder), "shop"
        self.folder = RunFolder(folder, self.name)
        self.folder.prepare()
        self.log = EpochLog(DirectoryStore(folder), JobPaths(self.name))
        self.up = True
        self.uptime_ms = 0
        self.checkpoints_asked = 0
        self.restarting = 0  # so many questions find the old version between two attempts, from the first stop on
        self.slow_start = 0  # the next start answers only after so many questions
        self.started: list[str] = []
        self.asked: list[str] = []
        self.on_start: dict[str, Any] = {}
        """What a start leads to, by its path: an outcome, or an epoch that it publishes; a list: of each start."""
        self.on_stop: Any = None
        launch = MasterLaunch(path="job:v1", name="shop", store=self.store, max_slots=4, id="0a")
        self.folder.write_launch(launch)
        self.folder.want_running(launch, "test")
        new = msgspec.structs.replace(launch, path="job:v2", id="0b")
        self.record = UpgradeRecord(
            id="1f",
            progress=Progress(Phase.STOPPING),
            old=launch,
            new=new,
            back=msgspec.structs.replace(launch, path="job:kept", id="0c"),
            savepoint="upgrade-1f",
            by="test",
            began_ms=0,
            changed_ms=0,
        )
        self.publish()

    def publish(self) -> int:
        """Publishes an epoch, as a JobMaster does that has just claimed the job."""
        claimed = self.log.claim(f"owner{len(self.started)}{self.epoch()}")
        assert claimed is not None
        record = claimed.record
        manifest = Manifest(
            "shop",
            self.epoch() + 1,
            record.next_checkpoint,
            AttemptId(record.generation, 1),
            0,
            128,
            [],
            [],
            [],
            {},
        )
        self.log.publish(record, self.log.write_manifest(manifest))
        return manifest.epoch

    def epoch(self) -> int:
        last = self.log.last()
        return last.newest.epoch if last is not None and last.newest is not None else 0

    def start(self, launch: MasterLaunch, by: str, id: str) -> None:
        self.started.append(launch.path)
        self.folder.clear()
        self.folder.write_launch(launch)
        self.folder.want_running(launch, by)
        self.up = True
        outcome = self.on_start.get(launch.path)
        match outcome.pop(0) if isinstance(outcome, list) else outcome:
            case MasterExit() as ended:
                self.up = False
                self.folder.write_exit(ended, launch)
            case "publishes":
                self.publish()

    # --- what the client answers ---

    def status(self) -> Any:
        if self.up and self.started and self.slow_start:
            self.slow_start -= 1
            if not self.slow_start:
                self.publish()
            raise NotRunning("no sign yet")
        if not self.up:
            raise NotRunning("not running")
        running = not (self.asked and self.restarting)
        self.restarting -= not running
        return SimpleNamespace(running=running, vertices=[], uptime_ms=self.uptime_ms)

    def looked_after(self) -> str | None:
        return None

    def ended(self) -> MasterExit | None:
        return self.folder.read_exit()

    def stop(self, savepoint: bool, name: str) -> None:
        self.asked.append(name)
        if isinstance(self.on_stop, WeirError):
            raise self.on_stop
        if self.restarting:
            raise WeirError("the job is not running now: look at it with weir status")
        self.publish()
        self.log.store.write(f"{self.log.paths.savepoint(name)}/savepoint.json", b"{}")
        self.ends(MasterExit(Outcome.STOPPED, "stopped"))

    def ends(self, end: MasterExit) -> None:
        self.up = False
        launch = self.folder.read_launch()
        assert launch is not None
        self.folder.write_exit(end, launch)

    def stop_record(self) -> None:
        return None

    def cancel_start(self, by: str) -> None:
        self.folder.want_stopped_here(by)
        self.ends(MasterExit(Outcome.CANCELLED, "cancelled"))

    def wait_until_ended(self) -> None: ...

    def trigger_checkpoint(self) -> None:
        self.checkpoints_asked += 1


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    monkeypatch.setattr(upgrading, "start_detached", made.start)
    monkeypatch.setattr(upgrading, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(upgrading, "UNSEEN_S", 0.02)
    return made


def upgraded(world: World, progress: Progress | None = None, patience_s: float = 60.0) -> UpgradeRecord:
    record = world.record if progress is None else msgspec.structs.replace(world.record, progress=progress)
    done = upgrading.carry_on(world, record, lambda text: None, patience_s)  # type: ignore[arg-type]
    assert world.folder.read_upgrade() == done
    return done


@pytest.mark.promise("D8")
def test_the_old_version_stops_with_a_savepoint_and_the_new_one_publishes(world: World) -> None:
    world.on_start["job:v2"] = "publishes"
    assert upgraded(world).progress == Progress(Phase.UPGRADED, 2)
    assert world.asked == ["upgrade-1f"] and world.started == ["job:v2"] and world.epoch() == 3


@pytest.mark.promise("D8")
def test_a_version_that_fails_is_followed_by_the_kept_code_with_the_line_that_raised(world: World) -> None:
    world.on_start["job:v2"] = MasterExit(Outcome.FAILED, "KeyError: 'user'", RAISED)
    done = upgraded(world)
    assert done.progress == Progress(Phase.BACK, 2, "the new version failed: KeyError: 'user'", RAISED)
    assert world.started == ["job:v2", "job:kept"] and world.epoch() == 2
    assert done.in_words("shop") == "shop runs the old version again: the new version failed: KeyError: 'user'"


@pytest.mark.promise("D8")
def test_a_version_that_publishes_nothing_is_cancelled_and_the_old_one_returns(world: World) -> None:
    done = upgraded(world, patience_s=0.05)
    assert done.progress.phase is Phase.BACK and "has published no epoch after 0 s" in done.progress.reason
    assert world.started == ["job:v2", "job:kept"]


@pytest.mark.promise("D8")
@pytest.mark.parametrize(("uptime_ms", "asked"), [(0, False), (29_999, False), (30_000, True)])
def test_a_version_that_has_read_nothing_is_asked_for_a_checkpoint_only_after_it_ran_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch, uptime_ms: int, asked: bool
) -> None:
    """Its start may take longer than that. It would publish an epoch, and could not be replaced by the old version."""
    now_s = iter(range(10_000))  # every look at the clock takes a second
    clock = SimpleNamespace(monotonic=lambda: float(next(now_s)), sleep=lambda s: None, time_ns=time.time_ns)
    monkeypatch.setattr(upgrading, "time", clock)
    monkeypatch.setattr(upgrading, "UNSEEN_S", 15.0)
    world.uptime_ms = uptime_ms
    assert upgraded(world, patience_s=40.0).progress.phase is Phase.BACK
    assert (world.checkpoints_asked > 0) is asked


@pytest.mark.promise("D8")
def test_a_supervisor_that_takes_long_to_start_is_waited_for_and_not_started_twice(world: World) -> None:
    """Seen on Spark: two supervisors of one start fenced each other for ever, on a busy machine."""
    world.slow_start = 5
    assert upgraded(world).progress.phase is Phase.UPGRADED
    assert world.started == ["job:v2"] and world.slow_start == 0


@pytest.mark.promise("D8")
def test_a_job_that_can_not_stop_runs_on(world: World) -> None:
    world.on_stop = WeirError("no space left")
    done = upgraded(world)
    assert done.progress.phase is Phase.KEPT and world.started == [] and world.up
    assert done.in_words("shop") == "the upgrade of shop to job:v2 was given up: the old version runs on: no space left"


@pytest.mark.promise("D8")
def test_a_stop_counts_also_if_the_clock_was_set_back_since_the_upgrade_began(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upgrade was given up, the old version stopped all the same, and no version ran."""
    asked: list[StopRecord] = []
    looks = iter(range(10))
    stop = world.stop

    def begins_to_stop(savepoint: bool, name: str) -> None:
        if asked:
            raise WeirError("the job is being stopped already: wait until it has ended")
        asked.append(StopRecord(drain=False, savepoint=name, requested_at_ms=-3_600_000))

    def stop_record() -> StopRecord | None:
        if asked and next(looks) == 3:
            stop(savepoint=True, name=asked[0].savepoint)
            raise NotRunning("it has ended")
        return asked[0] if asked else None

    monkeypatch.setattr(world, "stop", begins_to_stop)
    monkeypatch.setattr(world, "stop_record", stop_record)
    world.on_start["job:v2"] = "publishes"
    assert upgraded(world).progress == Progress(Phase.UPGRADED, 2)


@pytest.mark.promise("D8")
def test_a_stop_of_somebody_else_that_failed_before_says_nothing_about_the_upgrade(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = StopRecord(drain=False, savepoint="nightly", requested_at_ms=0, failed=True, reason="no space left")
    monkeypatch.setattr(world, "stop_record", lambda: failed)
    world.on_start["job:v2"] = "publishes"
    assert upgraded(world).progress == Progress(Phase.UPGRADED, 2)


@pytest.mark.promise("D8")
def test_a_stop_that_ended_an_earlier_start_is_not_the_stop_of_this_upgrade(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that had been upgraded before was never asked to stop, and the second upgrade waited for ever."""
    before = StopRecord(drain=False, savepoint="upgrade-before", requested_at_ms=0, ended=True)
    monkeypatch.setattr(world, "stop_record", lambda: before)
    world.on_start["job:v2"] = "publishes"
    assert upgraded(world).progress == Progress(Phase.UPGRADED, 2)


@pytest.mark.promise("D8")
def test_an_old_version_that_has_just_failed_and_is_restarted_is_asked_again(world: World) -> None:
    """It ran when the command looked, and not any more when it was asked to stop."""
    world.restarting = 3
    world.on_start["job:v2"] = "publishes"
    assert upgraded(world).progress == Progress(Phase.UPGRADED, 2)
    assert world.asked == ["upgrade-1f"] * 2


@pytest.mark.promise("D8", "H8")
def test_a_version_whose_supervisor_was_killed_is_started_again(world: World) -> None:
    """Its JobMaster cancels the job then. The upgrade took that for a wish of somebody, and no version ran."""
    world.on_start["job:v2"] = [LOST_SUPERVISOR, LOST_SUPERVISOR, "publishes"]
    assert upgraded(world).progress == Progress(Phase.UPGRADED, 2)
    assert world.started == ["job:v2"] * 3


@pytest.mark.promise("D8", "H8")
def test_an_old_version_whose_supervisor_was_killed_on_the_way_back_is_started_again(world: World) -> None:
    world.on_start["job:v2"] = MasterExit(Outcome.FAILED, "KeyError: 'user'", RAISED)
    world.on_start["job:kept"] = [LOST_SUPERVISOR, None]
    assert upgraded(world).progress.phase is Phase.BACK
    assert world.started == ["job:v2", "job:kept", "job:kept"]


@pytest.mark.promise("D8", "H8")
def test_an_old_version_whose_supervisor_was_killed_while_it_stopped_is_to_be_resumed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "stop", lambda savepoint, name: world.ends(LOST_SUPERVISOR))
    done = upgraded(world)
    assert done.progress.phase is Phase.KEPT and world.started == []
    assert "died while it was stopped; `weir resume shop` starts it again" in done.progress.reason


@pytest.mark.promise("D8")
def test_a_version_that_somebody_cancels_is_not_started_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "stop", lambda savepoint, name: world.cancel_start("somebody"))
    done = upgraded(world)
    assert done.progress.phase is Phase.KEPT and done.progress.reason == "the job was cancelled meanwhile"
    assert world.started == []


@pytest.mark.promise("D8", "F1")
@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.GOING_BACK])
def test_a_cancel_between_the_two_versions_is_the_last_word_for_a_command_that_carries_the_upgrade_on(
    world: World, phase: Phase
) -> None:
    """No process is alive. The cancel left no trace, and a later `weir resume` or `weir upgrade` started the job."""
    world.stop(True, world.record.savepoint)
    world.folder.want_stopped_here("stop")
    if phase is Phase.GOING_BACK:
        world.on_start["job:v2"] = MasterExit(Outcome.FAILED, "KeyError: 'user'", RAISED)
        world.start(world.record.new, "test", world.record.new.id)
    started = list(world.started)
    world.folder.write_upgrade(msgspec.structs.replace(world.record, progress=Progress(phase, 2, "it failed")))
    JobClient(world.store, "shop").cancel()
    assert look(JobClient(world.store, "shop")).verdict is Wanted.STOPPED, "a reboot starts nothing"
    done = world.folder.read_upgrade()
    assert done is not None and (done.progress.phase, done.progress.cut) == (Phase.KEPT, 2)
    failed = "it failed; then " if phase is Phase.GOING_BACK else ""
    assert done.progress.reason == f"{failed}the job was cancelled meanwhile"
    assert carry_on_upgrade(world, lambda text: None) is None and world.started == started  # type: ignore[arg-type]


@pytest.mark.promise("D8", "F1")
@pytest.mark.parametrize("moment", ["before the new version is started", "while it is started"])
def test_a_cancel_reaches_the_command_that_upgrades_the_job_at_this_moment(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    start, said = world.start, []

    def starting(launch: MasterLaunch, by: str, id: str) -> None:
        world.folder.cancel_upgrade("somebody")
        start(launch, by, id)

    def say(text: str) -> None:
        said.append(text)
        if moment.startswith("before") and "starting job:v2" in text:
            world.folder.cancel_upgrade("somebody")

    if moment.startswith("while"):
        monkeypatch.setattr(upgrading, "start_detached", starting)
    with upgrading.only_one(world):  # type: ignore[arg-type]
        done = upgrading.carry_on(world, world.record, say)  # type: ignore[arg-type]
    assert done.progress.phase is Phase.KEPT and done.progress.reason == "the job was cancelled meanwhile"
    desired = world.folder.read_desired()
    assert world.started == ["job:v2"] and not world.up and desired is not None and not desired.running


def test_an_upgrade_whose_lock_can_not_be_written_says_that_nothing_was_changed(world: World) -> None:
    """The store is read-only. The command ended with the bare words of the system."""
    world.folder.folder.mkdir(parents=True, exist_ok=True)
    world.folder.upgrade_lock.mkdir()
    with (
        pytest.raises(WeirError, match=r"can't be upgraded now: .*upgrade\.lock can't be written .*changed nothing"),
        upgrading.only_one(world),  # type: ignore[arg-type]
    ):
        pass


@pytest.mark.promise("D8", "F1")
def test_an_upgrade_whose_command_died_is_over_once_the_version_that_runs_is_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`weir status` said that `weir upgrade` carries it on. That it can't be written is no error: it is cancelled."""
    world.folder.write_upgrade(msgspec.structs.replace(world.record, progress=Progress(Phase.STARTING, 1)))
    monkeypatch.setattr(JobClient, "cancel_start", lambda client, by: world.cancel_start(by))
    with monkeypatch.context() as full:
        full.setattr(RunFolder, "write_upgrade", _full)
        JobClient(world.store, "shop").cancel()
    assert unfinished_upgrade(JobClient(world.store, "shop"))
    JobClient(world.store, "shop").cancel()
    assert unfinished_upgrade(JobClient(world.store, "shop")) == ""


@pytest.mark.promise("D8", "F1")
@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.GOING_BACK])
def test_a_cancel_on_another_machine_between_the_two_versions_is_heard_of_before_one_is_started(
    world: World, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    world.stop(True, world.record.savepoint)
    if phase is Phase.GOING_BACK:
        world.on_start["job:v2"] = MasterExit(Outcome.FAILED, "KeyError: 'user'", RAISED)
        world.start(world.record.new, "test", world.record.new.id)
    started = list(world.started)
    world.folder.write_upgrade(msgspec.structs.replace(world.record, progress=Progress(phase, world.epoch())))
    monkeypatch.setattr(RunFolder, "cancelled_elsewhere", lambda folder: "cli on two")
    assert carry_on_upgrade(world, lambda text: None) is not None  # type: ignore[arg-type]
    done = world.folder.read_upgrade()
    assert done is not None and done.progress.phase is Phase.KEPT and "cancelled meanwhile" in done.progress.reason
    assert world.started == started


@pytest.mark.promise("D8", "F1")
@pytest.mark.parametrize("published", [False, True])
def test_a_cancel_of_the_new_version_whose_command_died_says_whether_it_is_the_version_of_the_job(
    world: World, monkeypatch: pytest.MonkeyPatch, published: bool
) -> None:
    """It was always written as given up. Dagster then started the old version, behind an epoch of the new one."""
    world.stop(True, world.record.savepoint)
    world.start(world.record.new, "test", world.record.new.id)
    world.folder.write_upgrade(msgspec.structs.replace(world.record, progress=Progress(Phase.STARTING, world.epoch())))
    if published:
        world.publish()
    monkeypatch.setattr(JobClient, "cancel_start", lambda client, by: world.cancel_start(by))
    JobClient(world.store, "shop").cancel()
    done = world.folder.read_upgrade()
    assert done is not None and done.progress.phase is (Phase.UPGRADED if published else Phase.KEPT)


def _full(*of: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.promise("D8", "D5")
def test_a_savepoint_that_a_first_try_left_does_not_keep_the_old_version(world: World) -> None:
    """Its JobMaster was killed right before the last step. The next one has completed the savepoint, and goes on."""
    world.log.store.write(f"{world.log.paths.savepoint('upgrade-1f')}/savepoint.json", b"{}")
    stop, names = world.stop, []

    def stops(savepoint: bool, name: str) -> None:
        names.append(name)
        if SavepointFolder(Below(world.log.store, world.log.paths.savepoint(name))).exists():
            raise SavepointExists(f"{name} already holds a savepoint")
        stop(savepoint, name)

    world.stop = stops  # type: ignore[method-assign]
    world.on_start["job:v2"] = "publishes"
    done = upgraded(world)
    assert done.progress == Progress(Phase.UPGRADED, 2)
    assert names[0] == "upgrade-1f" and done.savepoint == names[1] and names[1].startswith("upgrade-1f-")


@pytest.mark.promise("D8", "D6")
def test_a_stop_that_a_first_try_asked_for_makes_its_savepoint_while_it_is_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command died. The stop went for somebody else's, so the job stayed stopped."""
    answers: list[StopRecord] = []
    looks = 0

    def stops(savepoint: bool, name: str) -> None:
        world.asked.append(name)
        world.log.store.write(f"{world.log.paths.savepoint(name)}/savepoint.json", b"{}")
        answers.append(StopRecord(drain=False, savepoint="upgrade-1f", requested_at_ms=0))
        raise WeirError("the job is being stopped already: wait until it has ended")

    def stop_record() -> StopRecord | None:
        nonlocal looks
        looks += bool(answers)
        if looks == 2:
            world.publish()
            world.ends(MasterExit(Outcome.STOPPED, "stopped"))
        return answers[0] if answers else None

    world.stop = stops  # type: ignore[method-assign]
    monkeypatch.setattr(world, "stop_record", stop_record)
    world.on_start["job:v2"] = "publishes"
    done = upgraded(world)
    assert done.progress == Progress(Phase.UPGRADED, 2) and done.savepoint == "upgrade-1f"
    assert world.asked == ["upgrade-1f"] and world.started == ["job:v2"]


@pytest.mark.promise("D8")
def test_the_cancel_of_an_earlier_upgrade_says_nothing_about_this_one(world: World) -> None:
    world.folder.write_upgrade(msgspec.structs.replace(world.record, id="before"))
    assert world.folder.cancel_upgrade("somebody")
    world.on_start["job:v2"] = "publishes"
    assert upgraded(world).progress == Progress(Phase.UPGRADED, 2)
    assert not world.folder.cancel_upgrade("somebody"), "it is over"


@pytest.mark.promise("D8", "D6")
def test_a_stop_of_somebody_else_is_not_taken_for_that_of_the_upgrade(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drains the job, and the new version was started all the same; the message named a savepoint that is not."""
    looks = iter(range(10))

    def stop_record() -> StopRecord:
        if next(looks) == 3:
            world.publish()
            world.ends(MasterExit(Outcome.STOPPED, "drained"))
        return StopRecord(drain=True, savepoint="", requested_at_ms=0)

    monkeypatch.setattr(world, "stop_record", stop_record)
    done = upgraded(world)
    assert done.progress.phase is Phase.KEPT and "somebody else stopped the job meanwhile" in done.progress.reason
    assert f"`weir submit {world.record.old.path} --name shop` starts it again" in done.progress.reason
    assert world.started == [] and world.asked == []


@pytest.mark.promise("D8", "H8")
def test_a_log_that_is_away_for_a_moment_is_waited_for_and_not_taken_for_that_of_a_new_job(world: World) -> None:
    """The cut became epoch 0, so the epoch of the old version's own stop passed for one of the new version."""
    log, away, said = Path(world.store, "shop/log"), Path(world.store, "shop/away"), []
    stop = world.stop

    def stops(savepoint: bool, name: str) -> None:
        stop(savepoint, name)
        log.rename(away)

    def say(text: str) -> None:
        said.append(text)
        if away.exists():
            away.rename(log)

    world.stop = stops  # type: ignore[method-assign]
    world.on_start["job:v2"] = MasterExit(Outcome.FAILED, "KeyError: 'user'", RAISED)
    done = upgrading.carry_on(world, world.record, say)  # type: ignore[arg-type]
    assert done.progress == Progress(Phase.BACK, 2, "the new version failed: KeyError: 'user'", RAISED)
    assert any("is the store mounted at" in text for text in said), said


@pytest.mark.promise("D8", "H8")
def test_a_full_disk_between_the_two_versions_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ended with an error when the old version had stopped and none ran. No phase begins unwritten."""
    write, start, full = RunFolder.write_upgrade, world.start, iter([True] * 5)
    phases: list[Phase] = []

    def writing(folder: RunFolder, record: UpgradeRecord) -> None:
        if record.progress.phase is Phase.STARTING and next(full, False):
            raise OSError(errno.ENOSPC, "No space left on device", "upgrade.json")
        write(folder, record)

    def starting(launch: MasterLaunch, by: str, id: str) -> None:
        record = world.folder.read_upgrade()
        assert record is not None
        phases.append(record.progress.phase)
        if len(phases) < 3:
            raise OSError(errno.ENOSPC, "No space left on device", "launch.json")
        start(launch, by, id)

    monkeypatch.setattr(RunFolder, "write_upgrade", writing)
    monkeypatch.setattr(upgrading, "start_detached", starting)
    world.on_start["job:v2"] = "publishes"
    assert upgraded(world).progress == Progress(Phase.UPGRADED, 2)
    assert phases == [Phase.STARTING] * 3


@pytest.mark.promise("D8", "F2")
def test_a_version_that_was_thought_to_be_dead_can_publish_nothing_behind_the_fence(world: World) -> None:
    """Its JobMaster is asleep when the old version is started again, and wakes with an epoch in its hands."""
    asleep = world.log.claim("asleep")
    assert asleep is not None
    world.folder.write_launch(world.record.new)
    world.up = False
    done = upgraded(world, Progress(Phase.GOING_BACK, 1, "it died"))
    assert done.progress.phase is Phase.BACK and world.started == ["job:kept"]
    late = Manifest(
        "shop", 2, asleep.record.next_checkpoint, AttemptId(asleep.record.generation, 1), 0, 128, [], [], [], {}
    )
    with pytest.raises(WeirError, match="another JobMaster"):
        world.log.publish(asleep.record, world.log.write_manifest(late))


@pytest.mark.promise("D8", "H8")
def test_what_has_to_be_repeated_on_the_way_back_is_said_and_shown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults: the store answers the fence with an error, then not at all, then as it should."""
    world.folder.write_launch(world.record.new)
    world.up = False
    claim, answers = EpochLog.claim, [StoreError("no route to host"), StoreError("no route to host"), None, None, None]
    shown: list[tuple[int, str]] = []

    def claiming(log: EpochLog, owner: str) -> Any:
        record = world.folder.read_upgrade()
        assert record is not None
        shown.append((record.status.retries, record.status.trouble))
        answer = answers.pop(0) if answers else claim(log, owner)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    monkeypatch.setattr(EpochLog, "claim", claiming)
    monkeypatch.setattr(upgrading, "LOOK_EVERY_S", 0.0)
    said: list[str] = []
    record = msgspec.structs.replace(world.record, progress=Progress(Phase.GOING_BACK, 1, "it died"))
    world.folder.write_upgrade(record)
    done = upgrading.carry_on(world, record, said.append, 60.0)  # type: ignore[arg-type]
    assert done.progress.phase is Phase.BACK and world.started == ["job:kept"]
    lines = [line for line in said if line.startswith("going back: ")]
    assert len(lines) == 2, "each trouble is said once"
    assert "no route to host; trying again" in lines[0] and "the store gave no answer" in lines[1]
    assert shown[0] == (0, "") and shown[1][0] == 1 and "no route to host" in shown[1][1]
    assert "the store gave no answer" in shown[-1][1]
    assert (done.status.retries, done.status.trouble) == (0, ""), "it is over"


@pytest.mark.promise("D8")
def test_the_old_version_is_not_started_if_the_new_one_was_faster_than_the_fence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.folder.write_launch(world.record.new)
    world.up = False
    claim = EpochLog.claim
    monkeypatch.setattr(EpochLog, "claim", lambda self, owner: (world.publish_once(claim), claim(self, owner))[1])

    def publish_once(_: Any) -> None:
        monkeypatch.setattr(EpochLog, "claim", claim)
        world.publish()

    world.publish_once = publish_once  # type: ignore[attr-defined]
    done = upgraded(world, Progress(Phase.GOING_BACK, 1, "it died"))
    assert done.progress.phase is Phase.UPGRADED and world.started == ["job:v2"]


@pytest.mark.promise("D8")
@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.STARTING, Phase.GOING_BACK])
def test_a_command_that_dies_right_behind_a_record_is_carried_on(world: World, phase: Phase) -> None:
    """The record of each phase is there, and nothing of the phase has happened."""
    world.on_start["job:v2"] = "publishes"
    if phase is not Phase.STOPPING:
        world.stop(True, world.record.savepoint)
    if phase is Phase.GOING_BACK:
        world.on_start["job:v2"] = MasterExit(Outcome.FAILED, "no")
        world.start(world.record.new, "", "")
    cut = None if phase is Phase.STOPPING else 2
    done = upgraded(world, Progress(phase, cut))
    assert done.progress.phase is (Phase.BACK if phase is Phase.GOING_BACK else Phase.UPGRADED)
    assert world.started[-1] == ("job:kept" if phase is Phase.GOING_BACK else "job:v2")


@pytest.mark.promise("D8")
@pytest.mark.parametrize(
    ("runs", "says"), [(True, "wait for its first checkpoint"), (False, "start job:v2 with `weir submit`")]
)
def test_a_job_without_an_epoch_is_waited_for_or_started(tmp_path: Path, runs: bool, says: str) -> None:
    launch = MasterLaunch(path="job:v2", name="new", store=str(tmp_path), max_slots=4)

    class Young(JobClient):
        def alive(self) -> bool:
            return runs

    with pytest.raises(WeirError, match=f"'new' has no epoch yet, so there is nothing to upgrade from: {says}"):
        upgrading.plan(Young(str(tmp_path), "new"), launch)


@pytest.mark.promise("D8", "F2")
@pytest.mark.parametrize("started", [False, True], ids=["between the versions", "with the new version"])
def test_a_resume_after_a_reboot_carries_the_upgrade_on(world: World, started: bool) -> None:
    """It was started as if nothing was: the job stayed down, or the new version ran without a way back."""
    world.stop(True, world.record.savepoint)
    world.folder.want_stopped_here("stop")
    if started:
        world.start(world.record.new, "test", world.record.new.id)
        world.up = False
    world.folder.write_upgrade(msgspec.structs.replace(world.record, progress=Progress(Phase.STARTING, 2)))
    assert look(JobClient(world.store, "shop")).verdict is Wanted.UPGRADED
    world.on_start["job:v2"] = MasterExit(Outcome.FAILED, "KeyError: 'user'", RAISED)
    done = carry_on_upgrade(world, lambda text: None)  # type: ignore[arg-type]
    assert done is not None and done.progress.phase is Phase.BACK
    assert world.started[-2:] == ["job:v2", "job:kept"] and world.epoch() == 2
    assert look(JobClient(world.store, "shop")).verdict is Wanted.RESUMED, "nothing stands in the way of a resume"
