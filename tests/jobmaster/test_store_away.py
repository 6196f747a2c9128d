"""A store that fails for a while under a running job: the job says why, goes on and loses nothing (H8).

Topology: that of test_savepoints.py, in one thread. Faults: after the first epoch, or from the first call on, the next
calls of the store fail, with the words of a bucket whose credentials are wrong, that is gone, or whose server fails or
is silent, and of a disk without rights or space. Checks: the table, the counts per key, what the events say, and how
the job ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine.core.errors import StoreError
from engine.jobmaster import events
from engine.jobmaster.actions import Outcome
from engine.protocol.epoch_records import Created
from engine.store.memory import MemoryStore
from tests.jobmaster.test_savepoints import RECORDS, Begun, Run, check_counts, counting

WORDS = (
    "access denied; the credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY need the right to read",
    "the bucket does not exist: create it, or choose another one",
    "the server in AWS_ENDPOINT_URL fails (500); look at its own log",
    "the server in AWS_ENDPOINT_URL did not answer (ReadTimeoutError): is it up, and reachable from here?",
    "No space left on device",
    "Permission denied",
)


class Away(MemoryStore):
    """A store whose next `left` calls fail."""

    left = 0

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words

    @contextmanager
    def _call(self, path: str) -> Iterator[None]:
        if self.left:
            self.left -= 1
            raise StoreError(f"can't use {path} in the store: {self._words}")
        yield

    def write(self, path: str, data: bytes) -> None:
        with self._call(path):
            super().write(path, data)

    def sync(self, paths: list[str]) -> None:
        with self._call(paths[0] if paths else ""):
            super().sync(paths)

    def create(self, path: str, data: bytes) -> Created:
        with self._call(path):
            return super().create(path, data)

    def read(self, path: str) -> bytes:
        with self._call(path):
            return super().read(path)

    def sizes(self, paths: list[str]) -> list[int | None]:
        with self._call(paths[0]):
            return super().sizes(paths)

    def list(self, prefix: str) -> list[str]:
        with self._call(prefix):
            return super().list(prefix)

    def delete(self, path: str) -> None:
        with self._call(path):
            super().delete(path)


def started(store: Away) -> Run:
    return Run(counting(), after=Begun(store, "here"))


def said(run: Run) -> str:
    kinds = (events.Aborted, events.AttemptFailed, events.ClaimFailed)
    return " ".join(str(event) for event in run.noted(*kinds))


def check_nothing_lost(run: Run) -> None:
    assert run.ended is not None and run.ended.outcome is Outcome.FINISHED
    assert run.numbers() == list(range(RECORDS))
    check_counts(run.rows("out"))


@pytest.mark.promise("H8")
@pytest.mark.parametrize("words", WORDS)
def test_a_store_that_fails_under_a_running_job_is_told_and_the_job_goes_on(words: str) -> None:
    store = Away(words)
    run = started(store).epochs_done(1)
    store.left = 7  # the slots of a local run send no heartbeats, so it may stand still for some seconds only
    run.run()
    assert store.left == 0 and words in said(run)
    check_nothing_lost(run)


@pytest.mark.promise("H8")
@pytest.mark.parametrize("words", WORDS)
def test_a_store_that_fails_at_the_start_is_asked_again_until_it_answers(words: str) -> None:
    store = Away(words)
    store.left = 6
    run = started(store)
    run.run()
    assert store.left == 0 and words in said(run)
    check_nothing_lost(run)
