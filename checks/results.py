"""The results of drills and audits. This module imports neither Spark nor Great Expectations: loading it is cheap."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.core.errors import WeirError

T = TypeVar("T")


class Verdict(Enum):
    """The verdict of a check. COULD_NOT_RUN is neither pass nor fail: it says nothing about the data."""

    PASSED = "passed"
    FAILED = "failed"
    COULD_NOT_RUN = "could not run"


class CheckResult(msgspec.Struct, frozen=True):
    """The result of one check. `rows` are examples of wrong rows, with labels (lost, duplicate, phantom, …).

    A `warning` that failed does not make the audit fail: readers of the tables don't see what it found.
    """

    name: str
    verdict: Verdict
    summary: str
    unexpected: int = 0
    rows: list[dict[str, Any]] = []
    warning: bool = False

    @property
    def only_warns(self) -> bool:
        return self.warning and self.verdict is Verdict.FAILED


class AuditResult(msgspec.Struct, frozen=True):
    """The result of an audit. It passes only if all `expected` expectations were `evaluated`."""

    job: str
    epoch: int
    checks: list[CheckResult]
    evaluated: int
    expected: int
    figures: dict[str, float]
    data_docs: str = ""

    @property
    def verdict(self) -> Verdict:
        """FAILED if any check failed, even if others could not run; PASSED only if all checks passed or only warn."""
        verdicts = [check.verdict for check in self.checks if not check.only_warns]
        if Verdict.FAILED in verdicts:
            return Verdict.FAILED
        if Verdict.COULD_NOT_RUN in verdicts or self.evaluated != self.expected or not verdicts:
            return Verdict.COULD_NOT_RUN
        return Verdict.PASSED


class Struck(msgspec.Struct, frozen=True):
    """One blow of a drill's fault: its victim, the moment, and what became of the job.

    `attempt` was the newest then (`1.2` is attempt 2 of generation 1), `after` the one in which records were processed
    again, `recovery_s` later. `cause` is that of the restart, as the job's history tells it; empty: there was none.
    `blow` counts the blows of the fault from 0; `until_ms` is the end of a hang. `point` is the failpoint at
    which its process met the blow. `slot` is None if all were struck, or
    none.
    """

    slot: int | None
    pid: int
    at_ms: int
    epoch: int
    attempt: str
    fault: str = "slot-killed"
    blow: int = 0
    victim: str = "slot"
    until_ms: int = 0
    after: str = ""
    cause: str = ""
    recovery_s: float = 0.0
    point: str = ""

    @property
    def generation(self) -> int:
        return int(self.attempt.partition(".")[0])

    def __str__(self) -> str:
        who = self.victim if self.slot is None else f"slot {self.slot}"
        who += f" at {self.point}" if self.point else ""
        return f"{who} (process {self.pid}, attempt {self.attempt}, epoch {self.epoch})"


class DrillResult(msgspec.Struct, frozen=True):
    """The result of one drill: what was done to the job, how it recovered, and what the reader saw.

    `recovery_s` is the longest time from a fault until records were processed again.
    """

    job: str
    store: str
    records: int
    recovery_s: float
    restarts: int
    checkpoints: int
    reader_reads: int
    reader_violations: list[str]
    started_ms: int
    duration_s: float
    seed: int = 0
    faults: list[Struck] = []

    @property
    def names(self) -> list[str]:
        """The names of the faults, in the order in which they struck."""
        return [struck.fault for struck in self.faults if struck.blow == 0]

    @property
    def verdict(self) -> Verdict:
        """FAILED if the reader saw anything but whole epochs. Lost and doubled rows are the audit's verdict."""
        return Verdict.FAILED if self.reader_violations else Verdict.PASSED


def read_result(file: Path, kind: type[T], command: str) -> T:
    """Reads a result that was written as JSON. `command` makes a new one, for who finds that this one is damaged."""
    data = file.read_bytes()
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WeirError(
            f"{file} ({len(data)} bytes) can't be read: {error}. It was cut short or changed: delete the folder "
            f"{file.parent}; `{command}` makes a new result"
        ) from error
