"""What is kept of each drill for good: one line in `drills/<job>/records.jsonl`, also when its folder is deleted.

A drill that was audited again has two lines; the later one counts. A line that was cut short by a crash is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from checks.catalogue import CATALOGUE
from checks.results import AuditResult, DrillResult, Struck, Verdict
from engine.host.places import local_folder
from engine.store.directory import make_folder

RECORDS = "records.jsonl"


class DrillRecord(msgspec.Struct, frozen=True):
    """One drill. `why` says what was red, or why there is no verdict; `run` is Dagster's run, if it was one.

    `faults` are the names of all that was to strike, `blows` what did. A drill without a verdict has none. `lost` and
    `doubled` are None if no audit has counted them. `live`: it struck the running job, and no copy.
    `docs` is the page of Great Expectations, as seen from the folder of the job's drills, if it has a place of its own.
    """

    id: str
    at_ms: int
    seed: int
    faults: list[str]
    verdict: Verdict
    why: str = ""
    blows: list[Struck] = []
    reads: int = 0
    partial_reads: int = 0
    lost: int | None = None
    doubled: int | None = None
    run: str = ""
    live: bool = False
    docs: str = ""

    @property
    def page(self) -> str:
        return self.docs or f"{self.id}/data_docs/index.html"


def record_of(
    result: DrillResult, audit: AuditResult | None = None, *, run: str = "", live: bool = False, docs: str = ""
) -> DrillRecord:
    """Returns the record of a drill that ran to its end. What its reader saw counts as well as its audit."""
    red = [result.reader_violations[0]] if result.reader_violations else []
    verdict = result.verdict
    if audit is not None:
        red += [f"{one.name}: {one.summary}" for one in audit.checks if _is_red(one.verdict) and not one.only_warns]
        verdict = Verdict.FAILED if verdict is Verdict.FAILED else audit.verdict
    figures = audit.figures if audit is not None else {}
    counted = {name: int(figures[name]) if name in figures else None for name in ("lost", "duplicated")}
    return DrillRecord(
        id=Path(result.store).name,
        at_ms=result.started_ms,
        seed=result.seed,
        faults=result.names,
        verdict=verdict,
        why="; ".join(red),
        blows=result.faults,
        reads=result.reader_reads,
        partial_reads=len(result.reader_violations),
        lost=counted["lost"],
        doubled=counted["duplicated"],
        run=run,
        live=live,
        docs=docs,
    )


def no_verdict(
    at_ms: int, seed: int, faults: Sequence[str], why: str, *, run: str = "", live: bool = False
) -> DrillRecord:
    """Returns the record of a drill that says nothing."""
    return DrillRecord(f"{at_ms}-seed{seed}", at_ms, seed, list(faults), Verdict.COULD_NOT_RUN, why, run=run, live=live)


def _is_red(verdict: Verdict) -> bool:
    return verdict is not Verdict.PASSED


def drills_folder(store: str | Path, job: str) -> Path:
    return local_folder(store) / "drills" / job


def keep(store: str | Path, job: str, record: DrillRecord) -> None:
    """Appends a record."""
    folder = drills_folder(store, job)
    make_folder(folder)
    with (folder / RECORDS).open("ab") as file:
        file.write(msgspec.json.encode(record) + b"\n")


def read_records(store: str | Path, job: str) -> list[DrillRecord]:
    """Returns the records of all drills of a job, oldest first."""
    try:
        lines = (drills_folder(store, job) / RECORDS).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found: dict[str, DrillRecord] = {}
    for line in lines:
        try:
            record = msgspec.json.decode(line, type=DrillRecord)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        before = found.get(record.id)
        run = record.run or (before.run if before is not None else "")
        found[record.id] = msgspec.structs.replace(record, run=run)
    return sorted(found.values(), key=lambda record: record.at_ms)


@dataclass(frozen=True)
class FaultFigures:
    """What the drills say of one fault. `recoveries_s` are those of drills with a verdict, oldest first."""

    fault: str
    target_s: float
    passed: int
    failed: int
    without_verdict: int
    recoveries_s: tuple[float, ...]
    last: DrillRecord | None

    @property
    def drills(self) -> int:
        return self.passed + self.failed + self.without_verdict

    def recovery_s(self, share: float) -> float | None:
        """Returns the recovery that this share of them did not exceed: one of them, by nearest rank."""
        ranked = sorted(self.recoveries_s)
        return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else None


@dataclass(frozen=True)
class Totals:
    drills: int
    strikes: int
    failed: int
    without_verdict: int
    lost: int
    doubled: int
    partial_reads: int


def figures_of(records: Iterable[DrillRecord]) -> list[FaultFigures]:
    """Returns the figures of each fault of the catalogue, in its order, also of those that were never drilled."""
    records = list(records)
    found = []
    for name, fault in CATALOGUE.items():
        of = [record for record in records if name in record.faults]
        judged = [record for record in of if record.verdict is not Verdict.COULD_NOT_RUN]
        found.append(
            FaultFigures(
                name,
                fault.target_s,
                sum(record.verdict is Verdict.PASSED for record in of),
                sum(record.verdict is Verdict.FAILED for record in of),
                len(of) - len(judged),
                tuple(recovery for record in judged for recovery in recoveries_s(record, name)),
                of[-1] if of else None,
            )
        )
    return found


def recoveries_s(record: DrillRecord, fault: str) -> list[float]:
    """Returns the recoveries from a fault in one drill. Two blows of one fault have one."""
    return [blow.recovery_s for blow in record.blows if blow.fault == fault and blow.blow == 0]


def totals_of(records: Iterable[DrillRecord]) -> Totals:
    records = list(records)
    return Totals(
        drills=len(records),
        strikes=sum(blow.blow == 0 for record in records for blow in record.blows),
        failed=sum(record.verdict is Verdict.FAILED for record in records),
        without_verdict=sum(record.verdict is Verdict.COULD_NOT_RUN for record in records),
        lost=sum(record.lost or 0 for record in records),
        doubled=sum(record.doubled or 0 for record in records),
        partial_reads=sum(record.partial_reads for record in records),
    )
