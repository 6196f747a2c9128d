"""Shows the last upgrade of a job: one that is being checked or was refused, or one that was begun."""

from __future__ import annotations

from engine.host.run_folder import RunFolder
from engine.host.settling import settled
from engine.host.upgrade_record import UpgradeStatus
from engine.host.upgrade_request import UpgradeRequest

DIED = "its process ended before the new version was checked; nothing was changed: run/master.log says more, ask again"


def last_upgrade(folder: RunFolder) -> UpgradeStatus | None:
    """Returns the last upgrade, done or not; None: there was none. Reads files, and may write one."""

    def not_begun() -> UpgradeRequest | None:
        """Returns the last request, unless its upgrade was begun. Who begins one writes its record first."""
        request, record = folder.read_upgrade_request(), folder.read_upgrade()
        return None if request is not None and record is not None and record.id == request.id else request

    request = settled(folder.upgrade_lock, not_begun, folder.write_upgrade_request, DIED)
    shown = request or folder.read_upgrade()
    return shown.status if shown is not None else None
