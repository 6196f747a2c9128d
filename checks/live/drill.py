"""The drill of the live job: kills a process of the running job itself, sees it recover, and audits its live tables.

Only kills strike it, and nothing of which the job does not recover by itself: if the drill ended in the middle, nobody
would let go of a process that it holds. Only processes of the job on this machine are struck.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from checks.catalogue import CATALOGUE, Ends, Fault, How, choose
from checks.drilled import DrillFailed
from checks.faults import happened, why_no_verdict
from checks.live.audit import run_live_audit
from checks.orders import Orders
from checks.processes import JobProcesses, Process, Role, parent_of, process
from checks.records import drills_folder
from checks.results import AuditResult, DrillResult
from checks.strikes import NotStruck, Striker
from checks.striking import FaultsInTurn, Say
from engine.core.errors import WeirError
from engine.observe.client import JobClient
from engine.store.directory import make_folder

PATIENCE_S = 120.0
FAULT_PATIENCE_S = 120.0
RESULT = "live.json"
_POLL_S = 0.03

Audit = Callable[[str, str], AuditResult]


class LiveDrill(msgspec.Struct, frozen=True):
    """What is written of a drill of the live job; `audit` is None if none was asked for."""

    drill: DrillResult
    audit: AuditResult | None


def live_faults() -> list[str]:
    """Returns the names of the faults that may strike a running job."""
    return [name for name, fault in CATALOGUE.items() if _may_strike(fault)]


def _may_strike(fault: Fault) -> bool:
    return all(blow.how is How.KILL and blow.cause.ends is not Ends.START for blow in fault.blows)


class RunningProcesses(JobProcesses):
    """The processes of a job that runs already: what its JobMaster has started, and who has started that."""

    def __init__(self, client: JobClient) -> None:
        super().__init__()
        self._client = client

    def all(self) -> list[Process]:
        address = self._client.folder.read_address()
        if address is None:
            return []
        found = [one for one in map(process, (address.pid, parent_of(address.pid))) if one is not None]
        return found + [one for one in _all() if address.pid in _forebears(one.pid)]

    def slot(self, pid: int) -> Process | None:
        """Returns a slot only if the job has started it here: the pid may be that of a process of another machine."""
        return next((one for one in self.of(Role.SLOT) if one.pid == pid), None)


def _all() -> list[Process]:
    pids = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return [one for one in map(process, pids) if one is not None]


def _forebears(pid: int) -> set[int]:
    found: set[int] = set()
    while (pid := parent_of(pid)) > 1 and pid not in found:
        found.add(pid)
    return found


def run_live_drill(
    store: str,
    job: str,
    *,
    seed: int,
    faults: Sequence[str],
    audit: Audit | None = run_live_audit,
    progress: Say = lambda text: None,
) -> LiveDrill:
    """Drills a running job. Raises DrillFailed if there is no verdict, and NotRunning if it does not run."""
    chosen = choose_live(faults, seed)
    started_ms, started = time.time_ns() // 1_000_000, time.monotonic()
    client = JobClient(store, job)
    before = client.status()
    for fault in chosen:
        progress(f"the LIVE job {job}: {fault.does}. Expected cause of the restart: {fault.cause}")
    chance = random.Random(seed)
    folder = drills_folder(store, job) / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-live-seed{seed}"
    striker = Striker(RunningProcesses(client), chance, Orders(folder))
    turns = FaultsInTurn(store, client, striker, chosen, chance, progress, after=before.epoch)
    try:
        restarts, epoch = _recovered(turns, PATIENCE_S + FAULT_PATIENCE_S * len(chosen))
    except NotStruck as error:
        raise DrillFailed(str(error)) from error
    struck = turns.with_causes()
    if why := why_no_verdict(struck, happened(store, job)):
        raise DrillFailed(f"no verdict: {why}")
    result = DrillResult(
        job=job,
        store=str(folder),
        records=0,
        recovery_s=max(one.recovery_s for one in struck),
        restarts=restarts,
        checkpoints=epoch - before.epoch,
        reader_reads=0,
        reader_violations=[],
        started_ms=started_ms,
        duration_s=round(time.monotonic() - started, 3),
        seed=seed,
        faults=struck,
    )
    progress(f"the job has recovered, and published {epoch - before.epoch} epochs since")
    done = LiveDrill(result, audit(store, job) if audit is not None else None)
    make_folder(folder)
    (folder / RESULT).write_bytes(msgspec.json.format(msgspec.json.encode(done)))
    return done


def choose_live(names: Sequence[str], seed: int) -> list[Fault]:
    """Returns the faults of these names; `random` is one of those that may strike a live job. Raises WeirError."""
    chance = random.Random(f"faults {seed}")
    allowed = live_faults()
    chosen = [CATALOGUE[chance.choice(allowed)] if name == "random" else choose([name], seed)[0] for name in names]
    if refused := [fault.name for fault in chosen if fault.name not in allowed]:
        raise WeirError(
            f"{', '.join(refused)}: a live job is only killed, so that it recovers also if the drill ends in the "
            f"middle: name one of {', '.join(allowed)}, or drill a copy without --live"
        )
    return chosen


def _recovered(turns: FaultsInTurn, patience_s: float) -> tuple[int, int]:
    """Waits until the job has recovered from all faults and completed a checkpoint. Returns restarts and its epoch."""
    deadline_s = time.monotonic() + patience_s
    recovered_at: int | None = None
    while time.monotonic() < deadline_s:
        status = turns.look()
        if status is not None and not turns.names_left:
            recovered_at = status.epoch if recovered_at is None else recovered_at
            if status.epoch > recovered_at:
                return status.restarts, status.epoch
        time.sleep(_POLL_S)
    left = ", ".join(turns.names_left) or "a checkpoint behind the last of them"
    raise DrillFailed(f"no verdict: the job has not recovered within {patience_s:.0f} s ({left})")
