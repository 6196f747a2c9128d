"""What a drill and an audit come to. Nothing here imports Spark or Great Expectations, so that everyone may read it."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec


class Verdict(Enum):
    """COULD_NOT_RUN is neither pass nor fail: the audit itself broke, and says nothing about the data."""

    PASSED = "passed"
    FAILED = "failed"
    COULD_NOT_RUN = "could not run"


class CheckResult(msgspec.Struct, frozen=True):
    """One check of an audit: `rows` are examples of what is wrong, labelled (lost, duplicate, phantom, …)."""

    name: str
    verdict: Verdict
    summary: str
    unexpected: int = 0
    rows: list[dict[str, Any]] = []


class AuditResult(msgspec.Struct, frozen=True):
    """`evaluated` of `expected` expectations were really evaluated; an audit that skipped some did not pass."""

    job: str
    epoch: int
    checks: list[CheckResult]
    evaluated: int
    expected: int
    figures: dict[str, float]
    data_docs: str = ""

    @property
    def verdict(self) -> Verdict:
        """FAILED if any check is: a lost row is lost, whatever else could not run. PASSED only if all of them are."""
        verdicts = [check.verdict for check in self.checks]
        if Verdict.FAILED in verdicts:
            return Verdict.FAILED
        if Verdict.COULD_NOT_RUN in verdicts or self.evaluated != self.expected or not verdicts:
            return Verdict.COULD_NOT_RUN
        return Verdict.PASSED


class DrillResult(msgspec.Struct, frozen=True):
    """One failure drill: what was done to the job, and how it came through."""

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
        """Of the drill itself: did a reader ever see part of an epoch? What was lost or doubled, the audit says."""
        return Verdict.FAILED if self.reader_violations else Verdict.PASSED
