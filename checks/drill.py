"""The kill drill: runs a job to its end and kills its workers at random moments, while a reader reads its tables.

The job runs through the real supervisor on real Spark, in a store of its own (`<store>/drills/<job>/<id>`), with the
source-side ledger beside it. The drill says whether the job came through, how fast, and whether the reader ever saw
part of an epoch; the audit says whether rows were lost or doubled. No process outlives a drill. A drill whose fault did
not happen, or whose job restarted for another cause, says nothing: it fails with `DrillFailed`, which is no verdict.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from checks.faults import failures_of, why_no_verdict
from checks.history import read_epochs
from checks.ledger import ledger_folder, write_ledger
from checks.processes import end_sessions
from checks.reader import Read, WatchedTable, judge_reads
from checks.results import DrillResult, KilledWorker, read_result
from checks.seal import READS, RESULT, NoKey, audit_key, seal_drill
from checks.spec import DRILLS_KEPT, DrillSpec
from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.host.launch import MasterLaunch
from engine.host.places import local_folder
from engine.host.run_folder import MasterExit
from engine.jobmaster.actions import Outcome
from engine.jobmaster.status import JobStatus
from engine.observe.client import JobClient
from engine.process.supervisor import Supervisor
from engine.store.directory import make_folder

RECORDS_PER_KILL = 100_000
CHECKPOINTS_FIRST = 2
"""Completed before the first kill, so that there is state to lose. One more completes between two kills."""
KILL_WITHIN_S = 2.0
PATIENCE_S = 180.0
READER_PATIENCE_S = 180.0
LEAST_READS = 5
_POLL_S = 0.03

Say = Callable[[str], None]
Share = Callable[[float], None]


class DrillFailed(WeirError):
    """The drill could not run to its end, because of the job or the machine. It says nothing about the data."""


def run_drill(
    spec: DrillSpec,
    store: str | Path,
    *,
    seed: int,
    kills: int = 1,
    records: int | None = None,
    progress: Say = lambda text: None,
    share: Share = lambda done: None,
) -> DrillResult:
    """Runs a drill, and returns its result when the job has finished. Raises DrillFailed.

    The seed decides which slot is killed and how long after a checkpoint. `progress` is called with sentences about
    what happens, `share` with the share that is done, 0 to 1.
    """
    records = records or RECORDS_PER_KILL * (1 + kills)
    _need_key()
    started_ms, started = time.time_ns() // 1_000_000, time.monotonic()
    folder = _new_folder(local_folder(store), spec.job, seed)
    write_ledger(spec, folder, records)
    progress(f"ledger of {records:,} records written before the job starts")
    reader = _Reader(spec, folder)
    launch = MasterLaunch(
        path=spec.path,
        name=spec.job,
        params=spec.launch_params(records),
        parallelism=spec.parallelism,
        store=str(folder),
        max_slots=max(2, spec.parallelism),
    )
    run = _Run(launch, spec, records, random.Random(seed), kills, progress, share)
    with contextlib.ExitStack() as whatever_happens:
        whatever_happens.callback(run.stop)
        whatever_happens.callback(reader.kill)
        reader.start()
        progress("a reader, another Spark application, reads the tables all the time")
        run.to_the_end(reader)
        reads = reader.stop()
    if why := why_no_verdict(run.faults, failures_of(folder, spec.job)):
        raise DrillFailed(f"no verdict: {why}")
    epochs = read_epochs(folder, spec.job)
    result = DrillResult(
        job=spec.job,
        store=str(folder),
        records=records,
        kills=len(run.recoveries_s),
        recovery_s=round(max(run.recoveries_s, default=0.0), 3),
        restarts=run.restarts,
        checkpoints=len(epochs),
        reader_reads=len(reads),
        reader_violations=judge_reads(reads, spec.tables, epochs),
        started_ms=started_ms,
        duration_s=round(time.monotonic() - started, 3),
        seed=seed,
        faults=run.faults,
    )
    written = msgspec.json.format(msgspec.json.encode(result))
    seal_drill(spec, folder, records, epochs, written)
    (folder / RESULT).write_bytes(written)
    progress(f"{len(reads)} reads, {len(result.reader_violations)} of them wrong; {len(epochs)} epochs")
    return result


def _need_key() -> None:
    """Without a key the drill could not be sealed at its end."""
    try:
        audit_key(make=True)
    except NoKey as error:
        raise DrillFailed(str(error)) from error


def drills(store: str | Path, job: str) -> list[DrillResult]:
    """Returns the finished drills of a job, oldest first. Each is where it was found: its store may be a copy."""
    files = sorted((local_folder(store) / "drills" / job).glob(f"*/{RESULT}"))
    found = [(file, read_result(file, DrillResult, f"weir drill {job}")) for file in files]
    return [msgspec.structs.replace(result, store=str(file.parent)) for file, result in found]


def _new_folder(store: Path, job: str, seed: int) -> Path:
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"[:-3] + f"-seed{seed}"
    parent = store / "drills" / job
    make_folder(parent / name)
    for old in sorted(path for path in parent.iterdir() if path.is_dir())[:-DRILLS_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return parent / name


class _Run:
    """The drilled job: its supervisor, and the kills."""

    def __init__(
        self,
        launch: MasterLaunch,
        spec: DrillSpec,
        records: int,
        chance: random.Random,
        kills: int,
        say: Say,
        share: Share,
    ) -> None:
        self.recoveries_s: list[float] = []
        self.faults: list[KilledWorker] = []
        self.restarts = 0
        self._spec = spec
        self._records = records
        self._chance = chance
        self._to_kill = kills
        self._say = say
        self._share = share
        self._supervisor = Supervisor(launch, say)
        self._client = JobClient(launch.store, launch.name)
        self._sessions: set[int] = set()
        self._kill_after = CHECKPOINTS_FIRST  # completed checkpoints
        self._kill_at_s: float | None = None
        self._killed_s: float | None = None
        self._killed_attempt = (0, 0)

    def to_the_end(self, reader: _Reader) -> None:
        deadline_s = time.monotonic() + PATIENCE_S + 2 * self._records / self._spec.records_per_s
        self._supervisor.start()
        self._say("the job starts: Spark, then its slots")
        while (ended := self._poll()) is None:
            reader.check_alive()
            if time.monotonic() > deadline_s:
                raise DrillFailed(
                    f"job {self._spec.job!r} did not finish in time; its log is {self._client.folder.log_file}"
                )
            with contextlib.suppress(WeirError):  # while a JobMaster is replaced there is no answer
                self._look(self._client.status(), time.monotonic())
            time.sleep(_POLL_S)
        if ended.outcome is not Outcome.FINISHED:
            raise DrillFailed(f"the job {ended.outcome}: {ended.reason}; its log is {self._client.folder.log_file}")
        if self._to_kill or self._killed_s is not None:
            raise DrillFailed("the job ended before it had recovered from every kill: drill it with more records")
        self._share(1.0)

    def _poll(self) -> MasterExit | None:
        if self._supervisor.master_pid is not None:
            self._sessions.add(self._supervisor.master_pid)
        return self._supervisor.poll()

    def _look(self, status: JobStatus, now_s: float) -> None:
        self.restarts = max(self.restarts, status.restarts)
        self._share(min(1.0, status.read_rows.get(self._spec.source_uid, 0) / self._records))
        if self._killed_s is not None:
            flows = sum(vertex.rows_in for vertex in status.vertices) > 0
            if status.running and flows and _attempt(status) > self._killed_attempt:
                self.recoveries_s.append(now_s - self._killed_s)
                self._killed_s = None
                self._kill_after = status.checkpoints.completed + 1
                self._say(f"records flow again {self.recoveries_s[-1]:.1f} s after the kill")
            return
        if not self._to_kill or not status.running or status.checkpoints.completed < self._kill_after:
            return
        if self._kill_at_s is None:
            self._kill_at_s = now_s + self._chance.uniform(0, KILL_WITHIN_S)
        if now_s >= self._kill_at_s:
            self._kill(status)

    def _kill(self, status: JobStatus) -> None:
        slots = [(slot.slot, slot.pid) for slot in status.slots if slot.slot is not None]
        number, pid = self._chance.choice(sorted(slots))
        at_ms, attempt = time.time_ns() // 1_000_000, f"{status.generation}.{status.attempt}"
        victim = KilledWorker(number, pid, at_ms, status.epoch, attempt)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            raise DrillFailed(f"no verdict: {victim} had ended by itself before it was to be killed") from None
        self.faults.append(victim)
        self._killed_s, self._kill_at_s = time.monotonic(), None
        self._killed_attempt = _attempt(status)
        self._to_kill -= 1
        done = status.checkpoints.completed
        self._say(f"kill -9 {pid}: slot {number}, after {done} checkpoints")

    def stop(self) -> None:
        self._supervisor.stop()
        left = end_sessions(self._sessions)
        if left:
            self._say(f"processes {left} of the job did not end by themselves and were killed")


def _attempt(status: JobStatus) -> tuple[int, int]:
    """Returns generation and attempt: if the JobMaster died too, the next generation counts attempts from 1 again."""
    return status.generation, status.attempt


class _Reader:
    """Runs `checks.reader` as a process."""

    def __init__(self, spec: DrillSpec, folder: Path) -> None:
        paths = JobPaths(spec.job)
        watched = [
            WatchedTable(t.name, t.uid, str(folder / paths.table(t.name)), t.schema, t.keys) for t in spec.tables
        ]
        self._reads = folder / READS
        self._log = folder / "reader.log"
        self._arguments = [msgspec.json.encode(watched).decode(), str(ledger_folder(folder)), str(self._reads)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "checks.reader", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only the drill, which then ends the reader in order
            )
        deadline = time.monotonic() + READER_PATIENCE_S
        while not self._reads.exists():  # the reader creates it when it is ready
            self.check_alive()
            if time.monotonic() > deadline:
                raise DrillFailed(f"the reader was not ready after {READER_PATIENCE_S:.0f} s; see {self._log}")
            time.sleep(_POLL_S)

    def check_alive(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise DrillFailed(f"the reader of the tables died; its log is {self._log}")

    def stop(self) -> list[Read]:
        """Ends the reader, which first reads every table once more, and returns all its reads."""
        self.check_alive()
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(READER_PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise DrillFailed(f"the reader did not end; see {self._log}") from error
        if code:
            raise DrillFailed(f"the reader failed with exit code {code}; see {self._log}")
        reads = [msgspec.json.decode(line, type=Read) for line in self._reads.read_bytes().splitlines()]
        if len(reads) < LEAST_READS:
            raise DrillFailed(
                f"only {len(reads)} reads of the tables, fewer than {LEAST_READS}, prove nothing; see {self._log}"
            )
        return reads

    def kill(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        end_sessions({self._process.pid})
