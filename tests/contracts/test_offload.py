"""The contract of `Offload` in `engine/core/ports.py`: threads on Spark, the scheduler in the simulator.

Checks: order within a queue, of works and of results; queues do not wait for each other; exceptions come back;
`done` runs on the deciding thread only; work runs in the context of its submitter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from engine.core.errors import StoreError
from engine.core.ports import Offload
from engine.host.mailbox import Mailbox
from engine.host.system import QueueOffload
from tests.simulation.ports import SimOffload
from tests.simulation.world import Process, World

PLACE: ContextVar[str] = ContextVar("PLACE", default="nowhere")


class Threads:
    """`QueueOffload`, with a mailbox that the test empties."""

    def __init__(self) -> None:
        self._mailbox: Mailbox[Callable[[], None]] = Mailbox()
        self.offload: Offload = QueueOffload(self._mailbox.put, threads=4)

    def run_until(self, over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not over():
            assert time.monotonic() < deadline, "no result in 60 s"
            if (finish := self._mailbox.take(0.05)) is not None:
                finish()

    def wait_in_work(self, over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not over():
            assert time.monotonic() < deadline
            time.sleep(0.001)


class _Submitter(Process):
    def deliver(self, work: Callable[[], None]) -> None:
        work()


class Simulated:
    """`SimOffload`; every work is a fiber that may pause."""

    def __init__(self) -> None:
        self._world = World(1)
        self._world.pauses = 1.0
        self.offload: Offload = SimOffload(_Submitter(self._world, "slot"), 1.0)  # type: ignore[arg-type]

    def run_until(self, over: Callable[[], bool]) -> None:
        assert self._world.run(over, 10_000.0, 10_000)

    def wait_in_work(self, over: Callable[[], bool]) -> None:
        while not over():
            self._world._fiber.suspend(1.0)  # type: ignore[union-attr]


@pytest.fixture(params=[Threads, Simulated])
def tried(request: pytest.FixtureRequest) -> Threads | Simulated:
    return request.param()


def test_the_works_of_a_lane_run_one_at_a_time_in_the_order_of_submission(tried: Threads | Simulated) -> None:
    began: list[int] = []
    ended: list[int] = []

    def work(number: int) -> None:
        began.append(number)
        tried.wait_in_work(lambda: len(began) == number + 1)
        ended.append(number)
        assert began == ended

    results: list[BaseException | None] = []
    for number in range(20):
        tried.offload.submit("queue", lambda n=number: work(n), lambda _, error: results.append(error))
    tried.run_until(lambda: len(results) == 20)
    assert began == ended == list(range(20)) and results == [None] * 20


def test_the_results_of_a_lane_come_back_in_order(tried: Threads | Simulated) -> None:
    results: list[int] = []
    for number in range(50):
        tried.offload.submit("queue", lambda n=number: n, lambda result, _: results.append(result))
    tried.run_until(lambda: len(results) == 50)
    assert results == list(range(50))


def test_a_lane_does_not_wait_for_another_one(tried: Threads | Simulated) -> None:
    opened: list[bool] = []
    results: list[str] = []
    tried.offload.submit("shut", lambda: tried.wait_in_work(lambda: bool(opened)), lambda *_: results.append("shut"))
    tried.offload.submit("open", lambda: opened.append(True), lambda *_: results.append("open"))
    tried.run_until(lambda: len(results) == 2)
    assert sorted(results) == ["open", "shut"]


def test_an_exception_comes_back_and_the_lane_goes_on(tried: Threads | Simulated) -> None:
    results: list[tuple[Any, BaseException | None]] = []
    error = StoreError("simulated")

    def fails() -> None:
        raise error

    tried.offload.submit("queue", fails, lambda *outcome: results.append(outcome))
    tried.offload.submit("queue", lambda: "next", lambda *outcome: results.append(outcome))
    tried.run_until(lambda: len(results) == 2)
    assert results == [(None, error), ("next", None)]


def test_done_is_called_on_the_deciding_thread_after_submit_has_returned(tried: Threads | Simulated) -> None:
    threads: list[threading.Thread] = []
    tried.offload.submit("queue", lambda: None, lambda *_: threads.append(threading.current_thread()))
    time.sleep(0.05)
    assert not threads
    tried.run_until(lambda: bool(threads))
    assert threads == [threading.current_thread()]


def test_done_may_submit_further_work_to_its_own_lane(tried: Threads | Simulated) -> None:
    results: list[str] = []

    def again(result: str, _: object) -> None:
        results.append(result)
        tried.offload.submit("queue", lambda: "second", lambda result, _: results.append(result))

    tried.offload.submit("queue", lambda: "first", again)
    tried.run_until(lambda: len(results) == 2)
    assert results == ["first", "second"]


def test_work_runs_in_the_context_of_its_submitter(tried: Threads | Simulated) -> None:
    found: list[str] = []
    token = PLACE.set("source")
    tried.offload.submit("queue", PLACE.get, lambda result, _: found.append(result))
    PLACE.reset(token)
    tried.run_until(lambda: bool(found))
    assert found == ["source"]


def test_the_oldest_work_under_way_is_known_and_forgotten_when_it_is_done() -> None:
    mailbox: Mailbox[Callable[[], None]] = Mailbox()
    offload, began, go_on = QueueOffload(mailbox.put, threads=4), threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        go_on.wait(60)

    offload.submit("hangs", hang, lambda result, error: None)
    assert began.wait(60)
    oldest = offload.oldest()
    assert oldest is not None and oldest.queue == "hangs"
    go_on.set()
    offload.submit("hangs", lambda: None, lambda result, error: None)
    for _ in range(2):
        assert mailbox.take(60) is not None
    offload.submit("other", began.clear, lambda result, error: None)
    assert mailbox.take(60) is not None and oldest != offload.oldest()
