"""Shows the last rehearsal that was asked for over HTTP."""

from __future__ import annotations

from engine.host.rehearsal_request import RehearsalStatus
from engine.host.run_folder import RunFolder
from engine.host.settling import settled

DIED = (
    "its process ended before there was a verdict; the running job was not touched: run/master.log says more, ask again"
)


def last_rehearsal(folder: RunFolder) -> RehearsalStatus | None:
    """Returns the last rehearsal, over or not; None: there was none. Reads a file, and may write it."""
    request = settled(folder.rehearsal_lock, folder.read_rehearsal_request, folder.write_rehearsal_request, DIED)
    return request.status if request is not None else None
