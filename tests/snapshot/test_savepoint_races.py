"""Several processes end the same savepoint at once: every order of their steps leaves a whole savepoint or none.

Goal: the promise of `engine/snapshot/savepoints.py`, not by examples but by thousands of drawn orders.
Processes: the JobMaster that writes it, one or two that collect garbage (`weir gc`, a new JobMaster), and perhaps a
person who deletes it. Each request to the store is one step; a folder is deleted file by file.
Faults: each process may die before any step. The writer's store may answer a request with an error.
Checks: a savepoint that exists can be restored. One that was told to be there is there, unless somebody deletes it.
Without one, two collections later no state is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import pytest

from engine.core.errors import CorruptSnapshot, NoSavepoint, SavepointExists, StoreError
from engine.jobmaster.collecting import collect
from engine.protocol.epoch_records import Created
from engine.snapshot.savepoints import Origin, SavepointFolder
from tests.fakes import MemoryStore
from tests.snapshot.test_garbage import PATHS, Job

PLACE = PATHS.savepoint("nightly")


class Died(BaseException):
    """A process was killed."""


class Turns:
    """Lets one process at a time take a step, in an order that the seed decides."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._turn = threading.Condition()
        self._waiting: dict[str, float] = {}
        self._next: str | None = None
        self._doomed: dict[str, int] = {}
        self._running: set[str] = set()

    def run(self, works: dict[str, Callable[[], None]], doomed: dict[str, int]) -> None:
        """Runs these processes to their ends. `doomed`: how many steps a process takes before it dies."""
        self._running, self._doomed = set(works), doomed
        threads = [threading.Thread(target=self._process, args=(name, work)) for name, work in works.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _process(self, name: str, work: Callable[[], None]) -> None:
        threading.current_thread().name = name
        try:
            work()
        except Died:
            pass
        finally:
            with self._turn:
                self._running.discard(name)
                self._choose()

    def step(self) -> None:
        """Waits for this process's turn. Raises Died if it is its last one."""
        name = threading.current_thread().name
        with self._turn:
            if name not in self._running:
                return
            self._waiting[name] = 0.0
            self._choose()
            self._turn.wait_for(lambda: self._next == name, timeout=60)
            self._next = None
            del self._waiting[name]
            self._doomed[name] = self._doomed.get(name, 10_000) - 1
            if self._doomed[name] < 0:
                raise Died

    def _choose(self) -> None:
        """Chooses who is next as soon as everybody waits, so that the order of threads decides nothing."""
        if self._waiting and set(self._waiting) == self._running and self._next is None:
            self._next = self._random.choice(sorted(self._waiting))
            self._turn.notify_all()


class Stepping(MemoryStore):
    """A store in which each request is a step of the process that sends it."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns
        self.failing: dict[str, int] = {}

    def _step(self) -> None:
        self._turns.step()
        name = threading.current_thread().name
        if name in self.failing:
            self.failing[name] -= 1
            if self.failing[name] == -1:
                raise StoreError("500")

    def write(self, path: str, data: bytes) -> None:
        self._step()
        super().write(path, data)

    def create(self, path: str, data: bytes) -> Created:
        self._step()
        return super().create(path, data)

    def read(self, path: str) -> bytes:
        self._step()
        return super().read(path)

    def list(self, prefix: str) -> list[str]:
        self._step()
        return super().list(prefix)

    def delete(self, path: str) -> None:
        for one in super().list(path) or [path]:
            self._step()
            super().delete(one)


class Race:
    """One savepoint, of whose writing and deleting nothing but the last steps are left to be taken."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        turns = Turns(random)
        self.store = Stepping(turns)
        self.job = Job(self.store)
        self.manifest = self.job.publish()
        self.folder = SavepointFolder(self.store.below(PLACE))
        self.draft = self.folder.prepare(self.manifest, Origin(self.job.log, self.job.id, 1))
        self.job.restart()
        self.told: list[str] = []
        self.deletes = False
        works: dict[str, Callable[[], None]] = {"writer": self._write, "collector": self._collect}
        if random.random() < 0.7:
            works["other collector"] = self._collect
        if random.random() < 0.4:
            works["person"] = self._delete
        if random.random() < 0.5:
            self.store.failing["writer"] = random.randrange(12)
        doomed = {name: random.randrange(25) for name in works if random.random() < 0.2}
        turns.run(works, doomed)

    def _write(self) -> None:
        try:
            self.folder.finish(self.draft, "nightly", self.manifest, 1, stopped=False)
        except (StoreError, SavepointExists):
            return
        self.told.append("writer")

    def _collect(self) -> None:
        if collect(self.store, "job", dry_run=False).completed:
            self.told.append(threading.current_thread().name)

    def _delete(self) -> None:
        for _ in range(3):
            try:
                if self.folder.exists():
                    self.deletes = True
                    self.folder.delete()
                    return
            except (NoSavepoint, StoreError, CorruptSnapshot):
                return

    def check(self) -> None:
        for _ in range(2):
            collect(self.store, "job", dry_run=False)
        if self.folder.exists():
            assert self.folder.copy_to(MemoryStore(), "new/copy").epoch == 1
        else:
            assert not self.told or self.deletes, f"{self.told} said that the savepoint was made"
            assert not any(path.endswith(".arrow") for path in self.store.list(PATHS.savepoints()))


@pytest.mark.promise("D5", "C4", "F2")
@pytest.mark.parametrize("block", range(10))
def test_whoever_ends_a_savepoint_in_whatever_order_leaves_a_whole_one_or_none(block: int) -> None:
    for seed in range(block * 300, block * 300 + 300):
        try:
            Race(seed).check()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error
