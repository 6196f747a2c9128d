"""The results of drills and audits. This module imports neither Spark nor Great Expectations: loading it is cheap."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec


class Verdict(Enum):
    """The verdict of a check. COULD_NOT_RUN is neither pass nor fail: it says nothing about the data."""

    PASSED = "passed"
    FAILED = "failed"
    COULD_NOT_RUN = "could not run"


class CheckResult(msgspec.Struct, frozen=True):
    """The result of one check. `rows` are examples of wrong rows, with labels (lost, duplicate, phantom, …)."""

    name: str
    verdict: Verdict
    summary: str
    unexpected: int = 0
    rows: list[dict[str, Any]] = []


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
        """FAILED if any check failed, even if others could not run; PASSED only if all checks passed."""
        verdicts = [check.verdict for check in self.checks]
        if Verdict.FAILED in verdicts:
            return Verdict.FAILED
        if Verdict.COULD_NOT_RUN in verdicts or self.evaluated != self.expected or not verdicts:
            return Verdict.COULD_NOT_RUN
        return Verdict.PASSED


class DrillResult(msgspec.Struct, frozen=True):
    """The result of one drill: what was done to the job, how it recovered, and what the reader saw."""

    job: str
    store: str
    records: int
    kills: int
    recovery_s: float
    restarts: int
    checkpoints: int
    reader_reads: int
    reader_violations: list[str]
    started_ms: int
    duration_s: float
    seed: int = 0

    @property
    def verdict(self) -> Verdict:
        """FAILED if the reader saw anything but whole epochs. Lost and doubled rows are the audit's verdict."""
        return Verdict.FAILED if self.reader_violations else Verdict.PASSED
