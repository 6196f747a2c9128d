"""Goal: a JobMaster that is stopped (SIGSTOP), replaced, and goes on later (SIGCONT) publishes and commits nothing any
more, and says so as it ends: 200 of 200 tries.

Topology: a JobMaster with two slots of its own; its successor is a standby in one half of the tries, and a fresh
JobMaster in the other. Faults: the JobMaster stops at a random moment, and goes on at a random moment after its
successor's fence; in one third of the tries the store loses answers meanwhile. Checks: which records of the epoch log
and of tables the old JobMaster creates after that fence (none), its outcome, and all invariants of the simulator. The
file that names the owner of a table is no record: it publishes nothing, and the successor writes the same. Two planted
bugs, a JobMaster that publishes behind its successor and one that commits without a fresh permit, are caught.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from engine.core.errors import Fenced, WeirError
from engine.jobmaster.actions import Outcome
from engine.jobmaster.publisher import Publisher
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.config import CheckpointConfig
from engine.protocol.epoch_records import Created
from engine.snapshot.commits import commit_epoch
from tests.simulation.bugs import BUGS, Patches
from tests.simulation.cluster import Cluster, MasterProcess, Pace
from tests.simulation.invariants import Checker
from tests.simulation.jobs import JobSpec
from tests.simulation.ports import Network, NetworkFaults
from tests.simulation.simulation import LIMIT_EVENTS, LIMIT_MS
from tests.simulation.store import SimStore, StoreFaults, StoreView
from tests.simulation.world import Violation, World

TRIES = 200
CHUNK = 25


@dataclass
class Try:
    """One JobMaster that is stopped and replaced."""

    seed: int
    stopped: MasterProcess | None = None
    woke_ms: float | None = None
    created_late: list[str] = field(default_factory=list)
    """Records of the log and of tables that it created after its successor's fence."""

    def run(self) -> None:
        random = Random(f"takeover {self.seed}")
        world = World(self.seed)
        world.calm_ms = 60.0
        spec = JobSpec(random.choice(("windows", "reduce")), parallelism=2, splits=2, rows=60, batch_rows=3)
        checkpoints = CheckpointConfig(interval_ms=random.choice((2, 4)), timeout_ms=300)
        store = SimStore(world, StoreFaults(unknown=0.2 if self.seed % 3 == 0 else 0.0))
        checker = Checker(store, spec, checkpoints)
        pace = Pace(step=2.0)
        self._cluster = Cluster(world, spec, checkpoints, store, Network(world, NetworkFaults(), 0.5), pace, checker)
        self._world, self._checker, self._random = world, checker, random
        by_standby = self.seed % 2 == 0
        if by_standby:
            world.after(0.0, None, "a standby is started", self._cluster.keep_standby)
        world.at(25 * random.random(), None, "the JobMaster is stopped", lambda: self._stop(by_standby))
        try:
            self._cluster.start()
            assert world.run(self._over, LIMIT_MS, LIMIT_EVENTS), f"try {self.seed} did not end"
        finally:
            world.close()
        checker.check_finished()

    def _over(self) -> bool:
        return self._cluster.finished and self.stopped is not None and self.stopped.outcome is not None

    def _stop(self, by_standby: bool) -> None:
        if not self._checker.records:  # it owns nothing yet that could be taken away from it
            self._world.after(1.0, None, "the JobMaster is not stopped yet", lambda: self._stop(by_standby))
            return
        [incarnation] = self._cluster.running
        self.stopped = incarnation.master
        if not (by_standby and self._cluster.take_over()):
            self._cluster.start()
        self._sleep_on()

    def _sleep_on(self) -> None:
        """Keeps the JobMaster asleep until its successor's fence is in the log, and for a while after that."""
        assert self.stopped is not None
        if self.replaced:
            self.stopped.sleep(40 * self._random.random())
            self.woke_ms = self.stopped.paused_until_ms
            return
        self.stopped.sleep(3.0)
        self._world.after(1.0, None, "the JobMaster is still stopped", self._sleep_on)

    @property
    def replaced(self) -> bool:
        assert self.stopped is not None
        owners = [record.owner for record in self._checker.records]
        name = self.stopped.name.removesuffix(".master")
        return bool(owners) and name in owners and owners[-1] != name


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[Try]:
    """Watches what the stopped JobMaster of the last try in this list creates."""
    current: list[Try] = []
    create = StoreView.create

    def watched(self: StoreView, path: str, data: bytes) -> Created:
        there = self._store.content(path) is not None
        outcome = create(self, path, data)
        one = current[-1]
        record = "/log/" in path or "/_spark_metadata/" in path
        numbered = path.rpartition("/")[2][0].isdigit()
        if (
            record
            and numbered
            and not there
            and self._process is one.stopped
            and one.replaced
            and outcome is Created.CREATED
        ):
            one.created_late.append(path)
        return outcome

    monkeypatch.setattr(StoreView, "create", watched)
    return current


@pytest.mark.promise("F2")
@pytest.mark.parametrize("first", range(0, TRIES, CHUNK))
def test_a_jobmaster_that_was_stopped_and_replaced_publishes_and_commits_nothing_and_says_so(
    current: list[Try], first: int
) -> None:
    verdicts: list[Any] = []
    for seed in range(first, first + CHUNK):
        current.append(Try(seed))
        current[-1].run()
        stopped = current[-1].stopped
        assert stopped is not None and current[-1].woke_ms is not None
        verdicts.append((stopped.outcome, "another JobMaster" in stopped.reason, current[-1].created_late))
    assert verdicts == [(Outcome.FENCED, True, [])] * CHUNK


def _publishes_anyway() -> Patches:
    """A JobMaster that finds its record number taken publishes behind its successor."""
    (bug,) = [bug for bug in BUGS if bug.name == "a fenced JobMaster publishes behind its successor"]
    return bug.patches()


def _commits_anyway() -> Patches:
    """A JobMaster commits its output whether or not its epoch was published."""
    appended = Publisher._appended

    def hasty(self: Publisher, record: Any, error: Any, now_ms: float) -> Any:
        publication = self._publication
        if isinstance(error, Fenced) and publication is not None and publication.ref is not None:
            with suppress(WeirError):  # the table refuses it, or the store does not say what became of it
                commit_epoch(self._committers, CommitPermit.issue(publication.ref), publication.manifest)
        return appended(self, record, error, now_ms)

    return [(Publisher, "_appended", hasty)]


@pytest.mark.parametrize("bug", [_publishes_anyway, _commits_anyway])
def test_a_jobmaster_that_goes_on_although_it_was_replaced_is_caught(
    bug: Any, current: list[Try], monkeypatch: pytest.MonkeyPatch
) -> None:
    for patched in bug():
        monkeypatch.setattr(*patched)
    caught = []
    for seed in range(TRIES):
        current.append(Try(seed))
        try:
            current[-1].run()
        except (Violation, AssertionError) as violation:
            caught.append(str(violation))
        caught += current[-1].created_late
        if caught:
            break
    print(caught)
    assert caught
