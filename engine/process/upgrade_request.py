"""Upgrades that are asked for over HTTP. The JobMaster is stopped in the middle of one, so a detached process does it:

    python -m engine.process.upgrade_request STORE JOB DESCRIPTOR

That process does what `weir upgrade` does (`engine/process/asked.py`). Its words go to the job's log, and what became
of the check to the job's `UpgradeRequest`. DESCRIPTOR holds the lock of the job's upgrades.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

from engine.core.errors import raised_by
from engine.graph.upgrade_plan import UpgradePlan
from engine.host.launch import MasterLaunch
from engine.host.upgrade_record import UpgradeRecord
from engine.host.upgrade_request import AskedUpgrade, Check, UpgradeRequest
from engine.jobmaster.savepoints import Refusal
from engine.observe.client import JobClient
from engine.process import upgrading
from engine.process.asked import BY, client_of_process, in_words, limited, planned, start_asked
from engine.process.upgrading import PATIENCE_S, Say


def request_upgrade(launch: MasterLaunch, environ: Mapping[str, str], asked: AskedUpgrade) -> str | Refusal:
    """Starts the process of an upgrade of the job that this start runs, and returns the upgrade's id.

    An upgrade that was interrupted is carried on, under its own id.
    """
    client = JobClient(launch.store, launch.name)
    folder = client.folder

    def note() -> str | Refusal:
        begun = upgrading.unfinished(client)
        if begun is not None and (asked.dry_run or asked.to not in (None, begun.new.path)):
            return Refusal(f"{begun.in_words(launch.name)}, and so does POST /upgrade with an empty body")
        id_, now_ms = begun.id if begun is not None else secrets.token_hex(4), time.time_ns() // 1_000_000
        request = UpgradeRequest(id=id_, asked=asked, old=launch.path, by=BY, began_ms=now_ms, changed_ms=now_ms)
        folder.write_upgrade_request(request)
        return request.id

    busy = f"another upgrade of job {launch.name!r} is under way: GET /upgrade shows it"
    module = "engine.process.upgrade_request"
    return start_asked(module, launch, environ, folder.upgrade_lock, busy, note, folder.forget_upgrade_request)


def carry_out(client: JobClient, request: UpgradeRequest, say: Say) -> UpgradeRecord | None:
    """Checks the new version and switches to it. Returns None if nothing was begun: the request says why."""
    begun = upgrading.unfinished(client)
    if begun is None:
        with limited():
            begun = _checked(client, request, say)
    return upgrading.carry_on(client, begun, say, request.asked.timeout_s or PATIENCE_S) if begun is not None else None


def _checked(client: JobClient, request: UpgradeRequest, say: Say) -> UpgradeRecord | None:
    """Begins the upgrade if the plan refuses nothing and it is no dry run."""
    plan = None
    try:
        launch, plan = planned(client, request.asked)
        if request.asked.dry_run:
            _write(client, request, Check.PLANNED, plan)
            return None
        upgrading.check(plan, launch)
        return upgrading.begin(client, launch, request.by, request.id)
    except Exception as error:
        _write(client, request, Check.REFUSED, plan, error)
        say(f"refused: {error}")
        return None


def _write(
    client: JobClient,
    request: UpgradeRequest,
    check: Check,
    plan: UpgradePlan | None,
    error: Exception | None = None,
) -> None:
    reason, raised = (in_words(error), raised_by(error)) if error is not None else ("", None)
    client.folder.write_upgrade_request(request.changed(check=check, plan=plan, reason=reason, raised=raised))


def main() -> None:
    client = client_of_process()
    request = client.folder.read_upgrade_request()
    assert request is not None, "the JobMaster writes it before it starts this process"

    def say(text: str) -> None:
        print(f"upgrade {request.id}: {text}", flush=True)

    record = carry_out(client, request, say)
    if record is not None:
        say(record.in_words(client.name))


if __name__ == "__main__":
    main()
