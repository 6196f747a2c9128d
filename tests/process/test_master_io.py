"""The I/O of a JobMaster whose store hangs: each queue goes on, whatever the others wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from engine.host.mailbox import Mailbox
from engine.process.master_io import Queue, master_offload, queue_of


@pytest.mark.parametrize("free", Queue)
def test_no_queue_of_the_jobmaster_waits_for_others_that_hang(free: Queue) -> None:
    mailbox: Mailbox[Callable[[], None]] = Mailbox()
    offload = master_offload(mailbox.put)
    answers = threading.Event()
    hung = [queue for queue in Queue if queue is not free]
    done: list[str] = []
    for queue in hung:
        for _ in range(3):
            offload.submit(queue, answers.wait, lambda *_, name=queue: done.append(name))
    offload.submit(free, lambda: None, lambda *_: done.append(free))
    try:
        work = mailbox.take(10)
        assert work is not None, f"{free} waits for a thread"
        work()
        assert done == [free]
    finally:
        answers.set()


def test_only_deleting_and_savepoints_run_beside_publication() -> None:
    names = ("claim", "recommit", "manifest", "publish", "commit", "delete", "sweep", "savepoint")
    assert [queue_of(name) for name in names] == [Queue.PUBLISH] * 5 + [Queue.CLEAN] * 2 + [Queue.SAVEPOINT]
