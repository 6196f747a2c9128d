"""Upgrades that are asked for over HTTP. The JobMaster is stopped in the middle of one, so a detached process does it:

    python -m engine.process.upgrade_request STORE JOB DESCRIPTOR

That process does what `weir upgrade` does. Only it loads the new version, whose code may be broken or slow. Its words
go to the job's log, and what became of the check to the job's `UpgradeRequest`. DESCRIPTOR holds the lock of the job's
upgrades: the JobMaster takes it and the process inherits it, so two requests never start two upgrades.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping

import msgspec

from engine.core.errors import WeirError, raised_by
from engine.graph.upgrade_plan import UpgradePlan
from engine.host import locks
from engine.host.launch import MasterLaunch
from engine.host.run_folder import RunFolder
from engine.host.upgrade_record import UpgradeRecord
from engine.host.upgrade_request import AskedUpgrade, Check, UpgradeRequest
from engine.jobmaster.savepoints import Refusal
from engine.observe.client import JobClient
from engine.process import upgrading
from engine.process.upgrading import PATIENCE_S, NewVersion, Say

BY = "http"
CHECK_S = 300
"""A process that has not loaded and checked the new version by then is ended: nobody waits in front of it."""


def request_upgrade(launch: MasterLaunch, environ: Mapping[str, str], asked: AskedUpgrade) -> str | Refusal:
    """Starts the process of an upgrade of the job that this start runs, and returns the upgrade's id.

    An upgrade that was interrupted is carried on, under its own id.
    """
    client = JobClient(launch.store, launch.name)
    folder = client.folder
    descriptor = locks.take(folder.upgrade_lock)
    if descriptor is None:
        return Refusal(f"another upgrade of job {launch.name!r} is under way: GET /upgrade shows it")
    try:
        begun = upgrading.unfinished(client)
        if begun is not None and (asked.dry_run or asked.to not in (None, begun.new.path)):
            return Refusal(f"{begun.in_words(launch.name)}, and so does POST /upgrade with an empty body")
        id_, now_ms = begun.id if begun is not None else secrets.token_hex(4), _now_ms()
        request = UpgradeRequest(id=id_, asked=asked, old=launch.path, by=BY, began_ms=now_ms, changed_ms=now_ms)
        folder.write_upgrade_request(request)
        _start(folder, [launch.store, launch.name], descriptor, environ)
        return request.id
    except OSError as error:
        folder.forget_upgrade_request()
        return Refusal(f"its process could not be started: {error}")
    finally:
        os.close(descriptor)  # the process has a copy, and with it the lock


def _start(folder: RunFolder, arguments: list[str], descriptor: int, environ: Mapping[str, str]) -> None:
    with folder.log_file.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "engine.process.upgrade_request", *arguments, str(descriptor)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            pass_fds=[descriptor],
            start_new_session=True,  # a JobMaster that ends takes its process group along
        )
    threading.Thread(target=process.wait, name="upgrade", daemon=True).start()  # leaves no zombie behind


def carry_out(client: JobClient, request: UpgradeRequest, say: Say) -> UpgradeRecord | None:
    """Checks the new version and switches to it. Returns None if nothing was begun: the request says why."""
    begun = upgrading.unfinished(client)
    if begun is None:
        signal.alarm(CHECK_S)  # ends the process, whatever the new version's code does
        begun = _checked(client, request, say)
        signal.alarm(0)
    return upgrading.carry_on(client, begun, say, request.asked.timeout_s or PATIENCE_S) if begun is not None else None


def _checked(client: JobClient, request: UpgradeRequest, say: Say) -> UpgradeRecord | None:
    """Begins the upgrade if the plan refuses nothing and it is no dry run."""
    asked, planned = request.asked, None
    version = NewVersion(asked.to, asked.params, asked.parallelism, asked.allow_non_restored_state)
    try:
        launch = upgrading.new_launch(client, version)
        planned = upgrading.plan(client, launch)
        if asked.dry_run:
            _write(client, request, Check.PLANNED, planned)
            return None
        upgrading.check(planned, launch)
        return upgrading.begin(client, launch, request.by, request.id)
    except Exception as error:
        if not isinstance(error, WeirError):
            traceback.print_exc()
        _write(client, request, Check.REFUSED, planned, error)
        say(f"refused: {error}")
        return None


def _write(
    client: JobClient,
    request: UpgradeRequest,
    check: Check,
    plan: UpgradePlan | None,
    error: Exception | None = None,
) -> None:
    reason = "" if error is None else str(error) if isinstance(error, WeirError) else f"{type(error).__name__}: {error}"
    raised = raised_by(error) if error is not None else None
    changed = {"check": check, "plan": plan, "reason": reason, "raised": raised, "changed_ms": _now_ms()}
    client.folder.write_upgrade_request(msgspec.structs.replace(request, **changed))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> None:
    client = JobClient(sys.argv[1], sys.argv[2])
    os.set_inheritable(int(sys.argv[3]), False)  # a supervisor that is started here must not hold the lock
    request = client.folder.read_upgrade_request()
    assert request is not None, "the JobMaster writes it before it starts this process"

    def say(text: str) -> None:
        print(f"upgrade {request.id}: {text}", flush=True)

    record = carry_out(client, request, say)
    if record is not None:
        say(record.in_words(client.name))


if __name__ == "__main__":
    main()
