"""Shows the last upgrade of a job: one that is being checked or was refused, or one that was begun."""

from __future__ import annotations

import time

import msgspec

from engine.host.locks import held
from engine.host.run_folder import RunFolder
from engine.host.upgrade_record import UpgradeRecord, UpgradeStatus
from engine.host.upgrade_request import Check, UpgradeRequest

DIED = "its process ended before the new version was checked; nothing was changed: run/master.log says more, ask again"


def last_upgrade(folder: RunFolder) -> UpgradeStatus | None:
    """Returns the last upgrade, done or not; None: there was none. Reads files, and may write one.

    A check whose process died would seem to go on for ever: whoever finds its lock free writes that it was refused.
    """
    request, record = _read(folder)
    if request is not None and request.check is Check.CHECKING:
        with held(folder.upgrade_lock) as free:
            if free:
                request, record = _read(folder)  # it may have ended right before
                if request is not None and request.check is Check.CHECKING:
                    now_ms = time.time_ns() // 1_000_000
                    request = msgspec.structs.replace(request, check=Check.REFUSED, reason=DIED, changed_ms=now_ms)
                    folder.write_upgrade_request(request)
    shown = request or record
    return shown.status if shown is not None else None


def _read(folder: RunFolder) -> tuple[UpgradeRequest | None, UpgradeRecord | None]:
    """Returns a request that is not begun, and the last upgrade that was. Who begins one writes its record first."""
    request, record = folder.read_upgrade_request(), folder.read_upgrade()
    begun = request is not None and record is not None and record.id == request.id
    return None if begun else request, record
