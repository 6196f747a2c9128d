"""Marked replay against a model of a target with transactions: stopped, crashed and overtaken at each of its steps.

Goal: each epoch has its rows in the target exactly once, as a whole. Faults: a call fails before or after it
had its effect; another JobMaster takes over at any call, does all its work, and the first one goes on as a zombie; that
one may be overtaken, too. Checks: after every call the target has each epoch once or not at all, in order; once the job
has restarted it has all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.connectors.kafka.replay import MarkedReplay
from engine.core.errors import TargetTaken
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable

pytestmark = pytest.mark.promise("G3", "D11")


class Failed(Exception):
    """A call did not answer, or the process died there."""


@dataclass
class Cluster:
    """What the brokers keep. A transaction belongs to the producer whose fence was the last one."""

    seen: list[str] = field(default_factory=list)
    marker: int | None = None
    fences: int = 0
    open: list[str] | None = None
    open_marker: int | None = None

    def check(self) -> None:
        assert self.seen == [row for epoch in range(1, (self.marker or 0) + 1) for row in rows_of(epoch)]


def rows_of(epoch: int) -> list[str]:
    return [f"{epoch}a", f"{epoch}b"]


def committables_of(epoch: int) -> list[Committable]:
    return [Committable("out", n, AttemptId(1, 1), epoch, 1, {"row": row}) for n, row in enumerate(rows_of(epoch))]


@dataclass
class Producer:
    """The target as one process sees it. `at_call` runs before and after each call, and may raise."""

    cluster: Cluster
    at_call: Callable[[], None]
    fence_of: int = 0

    def _call(self, effect: Callable[[], None]) -> None:
        self.at_call()
        effect()
        self.cluster.check()
        self.at_call()

    def _mine(self) -> Cluster:
        if self.fence_of != self.cluster.fences:
            raise Failed("fenced")
        return self.cluster

    def fence(self) -> int | None:
        def effect() -> None:
            self.cluster.fences += 1
            self.fence_of = self.cluster.fences
            self.cluster.open = self.cluster.open_marker = None

        self._call(effect)
        found: list[int | None] = []
        self._call(lambda: found.append(self.cluster.marker))
        return found[0]

    def begin(self) -> None:
        def effect() -> None:
            cluster = self._mine()
            assert cluster.open is None
            cluster.open = []

        self._call(effect)

    def send(self, committable: Committable) -> None:
        def effect() -> None:
            cluster = self._mine()
            assert cluster.open is not None
            cluster.open.append(committable.payload["row"])

        self._call(effect)

    def mark(self, epoch: int) -> None:
        def effect() -> None:
            self._mine().open_marker = epoch

        self._call(effect)

    def commit(self) -> None:
        def effect() -> None:
            cluster = self._mine()
            assert cluster.open is not None
            cluster.seen += cluster.open
            cluster.marker = cluster.open_marker
            cluster.open = cluster.open_marker = None

        self._call(effect)

    def give_up(self) -> None:
        if self.fence_of == self.cluster.fences:
            self.cluster.open = self.cluster.open_marker = None


@dataclass
class Job:
    """The epoch log, and JobMasters that work one after the other, or at the same time without knowing it.

    `faults`: at which calls, counted over all processes, something happens: the call fails, or another JobMaster takes
    over, works, and is followed by the rest of this one's work.
    """

    faults: dict[int, str]
    cluster: Cluster = field(default_factory=Cluster)
    published: int = 0
    generation: int = 0
    calls: int = 0

    def at_call(self) -> None:
        self.calls += 1
        match self.faults.get(self.calls):
            case "fails":
                raise Failed
            case "overtaken":
                self.work(1)

    def work(self, epochs: int) -> None:
        """A JobMaster claims the log and the target, commits the newest epoch again, and publishes some more."""
        self.generation += 1
        own = self.generation
        replay = MarkedReplay(Producer(self.cluster, self.at_call), "the sink")
        for _ in range(ATTEMPTS):
            try:
                self._attempt(replay, own, epochs)
                return
            except Failed:
                continue  # the attempt restarts in the same process
            except TargetTaken:
                # A zombie with an old view of the log is refused, and publishes nothing. Nobody else may be.
                assert self.generation != own
                return

    def _attempt(self, replay: MarkedReplay, own: int, epochs: int) -> None:
        newest = self.published
        replay.claim(newest + 1)
        if newest:
            replay.commit(newest, committables_of(newest))
        for _ in range(epochs):
            if self.generation != own:
                return  # the epoch log refuses its next record
            self.published += 1
            replay.commit(self.published, committables_of(self.published))


ATTEMPTS = 2
FAULTS = st.dictionaries(st.integers(1, 60), st.sampled_from(["fails", "overtaken"]), max_size=6)


@given(faults=FAULTS)
@settings(max_examples=400)
def test_every_epoch_is_sent_once_whoever_dies_or_sleeps_at_whichever_step(faults: dict[int, str]) -> None:
    job = Job(faults)
    for _ in range(3):
        job.work(2)
    job.faults = {}
    job.work(1)
    assert job.cluster.marker == job.published
    job.cluster.check()


STEPS = 40


@pytest.mark.parametrize("at", range(1, STEPS))
@pytest.mark.parametrize("fault", ["fails", "overtaken"])
def test_a_fault_at_each_single_step(at: int, fault: str) -> None:
    job = Job({at: fault})
    job.work(2)
    job.faults = {}
    job.work(1)
    assert job.cluster.marker == job.published
    job.cluster.check()


@pytest.mark.parametrize("at", range(1, 13))
def test_a_commit_that_failed_at_some_step_is_repeated_and_leaves_no_transaction_open(at: int) -> None:
    job = Job({})
    replay = MarkedReplay(Producer(job.cluster, job.at_call), "the sink")
    replay.claim(1)
    job.faults = {job.calls + at: "fails"}
    with suppress(Failed):
        replay.commit(1, committables_of(1))
    assert job.cluster.open is None
    replay.commit(1, committables_of(1))
    assert job.cluster.seen == rows_of(1)


def test_an_epoch_without_rows_needs_no_transaction() -> None:
    job = Job({})
    replay = MarkedReplay(Producer(job.cluster, job.at_call), "the sink")
    replay.claim(1)
    before = job.calls
    replay.commit(1, [])
    assert job.calls == before


def test_a_target_that_is_ahead_of_the_log_is_refused() -> None:
    job = Job({})
    job.work(3)
    replay = MarkedReplay(Producer(job.cluster, job.at_call), "the sink of topic 't'")
    with pytest.raises(
        TargetTaken, match=r"the sink of topic 't' has the rows of epoch 3, and the log .* with epoch 1"
    ):
        replay.claim(2)
