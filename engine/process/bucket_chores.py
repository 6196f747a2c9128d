"""What a JobMaster has to do every few seconds if its store is a bucket: write the history, and hear of other machines.

Neither ever runs twice at a time: a bucket that does not answer must not pile up work. Events that say how an attempt,
a savepoint or a rescale went are written at once, because a JobMaster that is killed loses what it has not written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from engine.core.ports import Offload
from engine.host.launch import MasterLaunch
from engine.host.run_folder import RunFolder
from engine.jobmaster.events import AnyEvent
from engine.observe.history import CAN_WAIT, History
from engine.process.master_io import Queue
from engine.store.bucket import is_bucket

logger = logging.getLogger("weir.master")

FLUSH_MS, HEAR_MS = 1000.0, 10_000.0


class BucketChores:
    def __init__(self, launch: MasterLaunch, folder: RunFolder, history: History, offload: Offload) -> None:
        self._needed = is_bucket(launch.store)
        self._offload = offload
        self._flush = _Chore(Queue.HISTORY, history.flush, FLUSH_MS, "the job's history can't be written now")
        hear = partial(folder.hear_elsewhere, launch)
        self._hear = _Chore(
            Queue.ELSEWHERE, hear, HEAR_MS, "whether another machine has started this job is not known now"
        )

    def noted(self, event: AnyEvent) -> None:
        """Lets the next `poll` write the history, unless the event can wait for its second."""
        if not isinstance(event, CAN_WAIT):
            self._flush.hurry()

    def poll(self, now_ms: float) -> None:
        """Starts what is due. Does nothing if the store is a directory."""
        if self._needed:
            self._flush.poll(now_ms, self._offload)
            self._hear.poll(now_ms, self._offload)


class _Chore:
    def __init__(self, queue: Queue, work: Callable[[], None], every_ms: float, trouble: str) -> None:
        self._queue = queue
        self._work = work
        self._every_ms = every_ms
        self._trouble = trouble
        self._due_ms = 0.0
        self._running = False

    def hurry(self) -> None:
        """Makes the work due now; if it runs, once more right after it."""
        self._due_ms = 0.0

    def poll(self, now_ms: float, offload: Offload) -> None:
        if self._running or now_ms < self._due_ms:
            return
        self._running, self._due_ms = True, now_ms + self._every_ms
        offload.submit(self._queue, self._work, self._done)

    def _done(self, _: None, error: BaseException | None) -> None:
        self._running = False
        if error is not None:
            logger.warning("%s: %s", self._trouble, error)
