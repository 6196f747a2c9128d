"""`weir savepoint`, `savepoints`, `stop` and `--from`, without Spark: real commands, client, HTTP server, JobMaster.

The job runs in a thread of this process, in a store on disk. On Spark: tests/cluster/test_savepoints.py.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.api import StreamEnvironment
from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterAddress, MasterExit, RunFolder
from engine.jobmaster.actions import Outcome
from engine.observe.http import RestServer
from engine.store.directory import DirectoryStore
from tests.cli.command import weir
from tests.observe.answering import NAME, AnsweringRun, _define, view


def endless(env: StreamEnvironment) -> None:
    env.enable_checkpointing(interval=50)
    _define(env, [view("ab"[n % 2], n // 1000) for n in range(200_000)])


class OnDisk:
    """What a run goes on from: an empty store in a folder."""

    nonce = "new"

    def __init__(self, folder: Path) -> None:
        self.store = DirectoryStore(folder)


class Served(AnsweringRun):
    """A job that runs in a thread and answers over HTTP."""

    def __init__(self, store: Path, job: Callable[[StreamEnvironment], None] = endless) -> None:
        super().__init__(store, job, OnDisk(store))  # type: ignore[arg-type]
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._gone = False
        self.ends_as: MasterExit | None = None  # what its process leaves, if not the outcome of its JobMaster

    def ask(self, question: Callable[[], Any]) -> Any:
        with self._lock:
            return question()

    decide = ask

    def __enter__(self) -> Served:
        self.run(until=lambda: self.master.stats.checkpoints_completed > 0)
        self._server = RestServer("127.0.0.1", "secret", self)
        self._server.start()
        RunFolder(self.launch.store, NAME).write_address(MasterAddress(self._server.url, 1, 1, "secret"))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._gone = True
        self._thread.join()
        self._server.stop()

    def _live(self) -> None:
        while not self._gone and self.ended is None:
            steps = iter([False] * 20 + [True])
            with self._lock:
                self.run(until=lambda steps=steps: next(steps))  # type: ignore[misc]
            time.sleep(0.001)
        if self.ended is not None:
            self._server.stop()
            ended = self.ends_as or MasterExit(self.ended.outcome, self.ended.reason)
            RunFolder(self.launch.store, NAME).write_exit(ended, self.launch)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "store") as run:
        yield run


@pytest.mark.promise("F1", "D5", "D6")
def test_a_job_is_saved_stopped_with_a_savepoint_and_listed_by_the_commands(served: Served, tmp_path: Path) -> None:
    store = tmp_path / "store"
    made = weir("savepoint", NAME, "--name", "first", store=store)
    assert made.returncode == 0, made.stderr
    assert "savepoint first" in made.stdout and str(store / NAME / "savepoints" / "first") in made.stdout
    there = json.loads(weir("savepoint", NAME, "--name", "b", "--to", str(tmp_path), "--json", store=store).stdout)
    assert (there["state"], there["place"]) == ("completed", str(tmp_path / "b"))
    twice = weir("savepoint", NAME, "--name", "first", store=store)
    assert twice.returncode == 1 and "already holds a savepoint: choose another name" in twice.stderr
    nowhere = weir("savepoint", NAME, "--to", "/proc/x", store=store)
    assert nowhere.returncode == 1 and "no savepoint can be written to /proc/x/" in nowhere.stderr
    assert "Choose another folder" in nowhere.stderr
    stopped = weir("stop", NAME, "--savepoint", "--name", "last", store=store)
    assert stopped.returncode == 0, stopped.stderr
    assert f"{NAME} is stopped: behind epoch" in stopped.stdout and "savepoints/last" in stopped.stdout
    listed = json.loads(weir("savepoints", NAME, "--json", store=store).stdout)
    assert [(one["savepoint"], one["state"]) for one in listed] == [
        ("last", "completed"),
        ("b", "completed"),
        ("first", "completed"),
    ]
    elsewhere = weir("savepoint", "delete", f"{NAME}/b", store=store)
    assert elsewhere.returncode == 1 and f"b of {NAME} is in {tmp_path / 'b'}, so give that folder" in elsewhere.stderr
    unknown = weir("savepoint", "delete", f"{NAME}/c", store=store)
    assert unknown.returncode == 1 and f"{NAME} has last, b, first. Give JOB/NAME" in unknown.stderr
    head = store / NAME / "savepoints" / "last" / "savepoint.json"
    whole = head.read_bytes()
    head.write_bytes(whole[:40])
    listed = " ".join(weir("savepoints", NAME, store=store).stdout.split())
    assert "damaged" in listed and "Bring it back from a backup" in listed, "a job can't begin from it"
    head.write_bytes(whole)
    deleted = weir("savepoint", "delete", f"{NAME}/first", store=store)
    assert deleted.returncode == 0 and "savepoint first of test" in deleted.stdout
    shown = weir("savepoints", NAME, store=store).stdout
    assert "gone" in shown and "deleted or moved away" in shown
    late = weir("savepoint", NAME, store=store)
    assert late.returncode == 1 and "is not running: it is stopped (behind epoch" in late.stderr
    assert f"`weir submit {served.launch.path} --name {NAME}` starts it again" in " ".join(late.stderr.split())
    assert "Traceback" not in late.stderr


@pytest.mark.promise("F1", "D6")
def test_a_job_is_drained_by_the_command_which_says_up_to_which_epoch(served: Served, tmp_path: Path) -> None:
    drained = weir("stop", NAME, "--drain", "--name", "end", store=tmp_path / "store")
    assert drained.returncode == 0, drained.stderr
    assert "all windows and timers have fired, up to epoch" in drained.stdout and "savepoints/end" in drained.stdout
    begun = ["tests.observe.answering:job", "--name", "x", "--from", f"{NAME}/end"]
    again = weir("submit", *begun, store=tmp_path / "store")
    assert again.returncode == 1 and "was taken with --drain" in " ".join(again.stderr.split())


@pytest.mark.promise("F1", "D6")
def test_a_drain_whose_savepoint_is_not_made_ends_the_job_and_the_command_fails(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command answered 0, and a script went on without the savepoint that it had asked for."""
    from engine.core.errors import StoreError
    from engine.snapshot.savepoints import SavepointFolder

    def away(*_: Any, **__: Any) -> None:
        raise StoreError("no connection")

    monkeypatch.setattr(SavepointFolder, "finish", away)
    drained = weir("stop", NAME, "--drain", "--name", "end", store=tmp_path / "store")
    said = " ".join(drained.stderr.split())
    assert drained.returncode == 1 and f"job '{NAME}' is stopped (drained" in said
    assert "but its savepoint end was not made" in said and "no connection" in said
    assert f"`weir gc {NAME}` completes it" in said
    assert served.ended is not None


@pytest.mark.promise("D6")
def test_a_stop_that_fails_says_why_and_that_the_job_goes_on(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.core.errors import StoreError
    from engine.snapshot.savepoints import SavepointFolder

    def full(*_: Any) -> None:
        raise StoreError("can't write the state: No space left on device")

    monkeypatch.setattr(SavepointFolder, "prepare", full)
    failed = weir("stop", NAME, "--savepoint", store=tmp_path / "store")
    assert failed.returncode == 1 and "is not stopped and goes on" in failed.stderr
    assert "No space left on device" in failed.stderr and served.ended is None
    lost = weir("savepoint", NAME, "--name", "x", store=tmp_path / "store")
    assert lost.returncode == 1 and "No space left on device" in lost.stderr


@pytest.mark.promise("D6")
def test_a_stop_whose_job_ends_in_another_way_names_the_savepoint_that_was_made(served: Served, tmp_path: Path) -> None:
    """Its supervisor is killed in the last moment. The savepoint exists, and the command said nothing of it."""
    served.ends_as = MasterExit(Outcome.CANCELLED, "its supervisor has died")
    failed = weir("stop", NAME, "--name", "last", store=tmp_path / "store")
    said = " ".join(failed.stderr.split())
    assert failed.returncode == 1 and "its supervisor has died" in said
    assert "Its savepoint" in said and "savepoints/last is complete" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("savepoint", "nobody"), "there is no job 'nobody'"),
        (("savepoint", "delete", "nobody/nothing"), "there is no savepoint in"),
        (("savepoint", "a", "b", "c"), "write weir savepoint JOB to take one"),
        (("savepoints", "nobody"), "there is no job 'nobody'"),
        (("stop", "nobody"), "there is no job 'nobody'"),
        (("submit", "tests.observe.answering:job", "--claim"), "name it with --from SAVEPOINT"),
        (("submit", "tests.observe.answering:job", "--from", "x", "--rewind"), "choose one of --from, --rewind"),
        (
            ("submit", "tests.observe.answering:job", "--from", "/nothing/here"),
            "there is no savepoint in /nothing/here",
        ),
    ],
)
def test_what_can_not_be_is_one_error_without_a_traceback(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = weir(*arguments, store=tmp_path)
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("submit", "tests.observe.answering:job", "--from"), ("savepoint", "delete")])
def test_a_misspelt_job_of_a_savepoint_gets_the_nearest_name(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    folder = RunFolder(tmp_path, "pageviews")
    folder.prepare()
    folder.write_launch(MasterLaunch(path="job:job", name="pageviews", store=str(tmp_path), max_slots=1, id="0a"))
    done = weir(*arguments, "pagviews/before-v2", store=tmp_path)
    said = " ".join(done.stderr.split())
    assert done.returncode == 1 and "There is no job 'pagviews'" in said and "did you mean 'pageviews'?" in said
    near = weir(*arguments, "pageviews/before-v2", store=tmp_path)
    assert "pageviews has none" in near.stderr and "did you mean" not in near.stderr


@pytest.mark.parametrize("command", ["savepoint", "savepoints", "stop"])
def test_the_help_teaches_with_examples(tmp_path: Path, command: str) -> None:
    shown = weir(command, "--help", store=tmp_path).stdout
    assert "Examples:" in shown and f"weir {command} pageviews" in shown
