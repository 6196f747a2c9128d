"""The drill: runs a copy of a job to its end and breaks it at random moments, while a reader reads its tables.

The faults are those of `checks/catalogue.py`. The job runs under a real supervisor on real Spark, in a store of its own
(`<store>/drills/<job>/<id>`), with the source-side ledger beside it. The drill says whether the job came through, how
fast, and whether the reader ever saw part of an epoch; the audit says whether rows were lost or doubled. No process
outlives a drill. A drill whose fault did not happen, or whose job restarted for another cause, says nothing: it fails
with `DrillFailed`, which is no verdict.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from checks.catalogue import USUAL, Fault, choose
from checks.drilled import DrilledJob, DrillFailed, Share
from checks.faults import happened, why_no_verdict
from checks.history import HistoryIncomplete, read_epochs
from checks.ledger import ledger_folder, write_ledger
from checks.processes import end_session
from checks.reader import Read, WatchedTable, judge_reads
from checks.results import DrillResult, read_result
from checks.seal import READS, RESULT, NoKey, audit_key, seal_drill
from checks.spec import DRILLS_KEPT, DrillSpec
from checks.strikes import NotStruck
from checks.striking import Say
from engine.connectors.table import TableSink
from engine.core.errors import JobError, WeirError
from engine.core.paths import JobPaths
from engine.host.launch import LaunchOptions, MasterLaunch
from engine.host.places import local_folder
from engine.process.loading import load
from engine.store.directory import make_folder

RECORDS_PER_FAULT = 100_000
READER_PATIENCE_S = 180.0
LEAST_READS = 5
_POLL_S = 0.03


def run_drill(
    spec: DrillSpec,
    store: str | Path,
    *,
    seed: int,
    faults: Sequence[str] = (USUAL,),
    records: int | None = None,
    spark: LaunchOptions | None = None,
    progress: Say = lambda text: None,
    share: Share = lambda done: None,
) -> DrillResult:
    """Runs a drill, and returns its result when the job has finished. Raises DrillFailed.

    The `faults` strike one after the other; they are names of the catalogue, or `random`. The seed decides which fault
    that is, which slot is struck, and how long after a checkpoint. `progress` is called with sentences about
    what happens, `share` with the share that is done, 0 to 1. Of `spark` its master, configuration, slots and their
    memory count; without it the job runs on a Spark of this machine.
    """
    spark = spark or LaunchOptions(path=spec.path)
    chosen = choose(faults, seed)
    records = records or records_for(spec, chosen)
    _need_key()
    params = spec.launch_params(records)
    _check_sinks(spec, params)
    started_ms, started = time.time_ns() // 1_000_000, time.monotonic()
    folder = _new_folder(local_folder(store), spec.job, seed)
    write_ledger(spec, folder, records)
    for line in announced(chosen):
        progress(line)
    progress(f"ledger of {records:,} records written before the job starts")
    reader = _Reader(spec, folder)
    launch = MasterLaunch(
        path=spec.path,
        name=spec.job,
        params=params,
        parallelism=spec.parallelism,
        own_tables=True,
        store=str(folder),
        max_slots=spark.max_slots or max(2, spec.parallelism),
        spark_master=spark.spark_master,
        conf=spark.conf,
        slot_memory_mb=spark.slot_memory_mb,
    )
    job = DrilledJob(launch, spec, records, chosen, random.Random(seed), progress, share)
    with contextlib.ExitStack() as whatever_happens:
        whatever_happens.callback(job.stop)
        whatever_happens.callback(reader.kill)
        reader.start()
        progress("a reader, another Spark application, reads the tables all the time")
        try:
            job.to_the_end(reader.check_alive)
        except NotStruck as error:
            raise DrillFailed(str(error)) from error
        reads = reader.stop()
    if why := why_no_verdict(job.struck, happened(folder, spec.job)):
        raise DrillFailed(f"no verdict: {why}")
    try:
        epochs = read_epochs(folder, spec.job)
    except HistoryIncomplete as error:
        raise DrillFailed(f"no verdict: {error}") from error
    result = DrillResult(
        job=spec.job,
        store=str(folder),
        records=records,
        recovery_s=max(struck.recovery_s for struck in job.struck),
        restarts=job.restarts,
        checkpoints=len(epochs),
        reader_reads=len(reads),
        reader_violations=judge_reads(reads, spec.tables, epochs),
        started_ms=started_ms,
        duration_s=round(time.monotonic() - started, 3),
        seed=seed,
        faults=job.struck,
    )
    written = msgspec.json.format(msgspec.json.encode(result))
    seal_drill(spec, folder, records, epochs, written)
    (folder / RESULT).write_bytes(written)
    progress(f"{len(reads)} reads, {len(result.reader_violations)} of them wrong; {len(epochs)} epochs")
    return result


def records_for(spec: DrillSpec, faults: Sequence[Fault]) -> int:
    """Returns how many records a drill needs, so that some are left when the job has recovered from every fault."""
    meanwhile = sum(fault.lasts_s for fault in faults) * spec.records_per_s
    return RECORDS_PER_FAULT * (1 + len(faults)) + int(meanwhile)


def announced(faults: Sequence[Fault]) -> list[str]:
    """Says beforehand what the drill will do to the copy of the job."""
    return [
        f"{fault.name}: {fault.does}. Expected cause of the restart: {fault.cause}. Recovery: {fault.recovery}"
        for fault in faults
    ]


def _check_sinks(spec: DrillSpec, params: Mapping[str, str]) -> None:
    """Refuses a job whose copy would write to the same place as the job. One that can't be built fails as it runs."""
    with contextlib.suppress(JobError):
        own, copy = (
            load(LaunchOptions(path=spec.path, name=spec.job, params=dict(given), parallelism=spec.parallelism)).sinks
            for given in ({}, params)
        )
        taken = {sink.target for _, sink in own}
        for uid, sink in copy:
            if sink.target in taken - {None} and not isinstance(sink, TableSink):
                raise WeirError(
                    f"sink {uid!r} writes to {sink.target}, in a drill too: its copy of the job would add its rows to "
                    "those of the job. Let a parameter of the job say where it writes, and give DRILL another value"
                )


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
        end_session(self._process.pid)
