"""A failed fsync ends the process, whoever asked for it: it is unknown afterwards which writes are durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.core.errors import SyncFailed
from engine.core.ports import Offload


class EndsOnFailedSync:
    """An `Offload` that calls `end` if work failed to sync, instead of handing the error to whoever submitted the work.

    A submitter may have lost interest, such as an attempt that is over, or may take the error for one to try again.
    """

    def __init__(self, offload: Offload, end: Callable[[SyncFailed], None]) -> None:
        self._offload = offload
        self._end = end

    def submit(self, queue: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def checked(result: Any, error: BaseException | None) -> None:
            if isinstance(error, SyncFailed):
                self._end(error)
            else:
                done(result, error)

        self._offload.submit(queue, work, checked)


def end_by_raising(error: SyncFailed) -> None:
    """Ends the process by an exception that nothing on the deciding thread catches."""
    raise error
