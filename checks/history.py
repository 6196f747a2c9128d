"""Reads what a job recorded about its epochs: `history/events.jsonl` has the ledger's totals of every checkpoint.

The counters come from channels, sources and sinks at the barrier, never from the tables, so that tables and reads can
be compared with them. A JobMaster that dies right after the commit point of an epoch writes no such event, and that
epoch's manifest is deleted later: a drill keeps its totals in `epochs.jsonl` when a JobMaster has died (`keep_newest`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from checks.spec import DrillSpec
from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.jobmaster.events import Completed
from engine.observe.history import History
from engine.protocol import ledger
from engine.protocol.manifest import ManifestRef
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore

KEPT = "epochs.jsonl"


class HistoryIncomplete(WeirError):
    """An epoch has no record, so its equations can't be checked."""


@dataclass(frozen=True)
class EpochTotals:
    """The ledger's totals up to and including this epoch."""

    epoch: int
    completed_at_ms: int
    totals: dict[str, int]


@dataclass(frozen=True)
class Equation:
    """Two numbers that must be equal in this epoch, or over all epochs if it is 0. `what` names them."""

    epoch: int
    what: str
    left: int
    right: int

    @property
    def holds(self) -> bool:
        return self.left == self.right


def read_epochs(store: Path, job: str) -> list[EpochTotals]:
    """Returns every epoch of the job, from 1 without gaps to the newest in its epoch log."""
    log = EpochLog(DirectoryStore(store), JobPaths(job))
    last = log.last()
    if last is None or last.newest is None:
        raise HistoryIncomplete(f"job {job!r} has published no epoch in {store}")
    found = _kept(store) | _recorded(log, last.newest, History(store, job))
    missing = [epoch for epoch in range(1, last.newest.epoch + 1) if epoch not in found]
    if missing:
        raise HistoryIncomplete(f"job {job!r} has no record of epoch {', '.join(map(str, missing))} in its history")
    return [found[epoch] for epoch in range(1, last.newest.epoch + 1)]


def keep_newest(store: Path, job: str) -> None:
    """Keeps the totals of the newest epoch beside the job's store, from its manifest. No JobMaster runs."""
    log = EpochLog(DirectoryStore(store), JobPaths(job))
    last = log.last()
    if last is None or last.newest is None:
        return
    manifest = log.read_manifest(last.newest)
    kept = EpochTotals(last.newest.epoch, manifest.created_ms, manifest.ledger)
    with (store / KEPT).open("ab") as file:
        file.write(msgspec.json.encode(kept) + b"\n")


def _kept(store: Path) -> dict[int, EpochTotals]:
    try:
        lines = (store / KEPT).read_bytes().splitlines()
        kept = [msgspec.json.decode(line, type=EpochTotals) for line in lines]
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}  # a gap in the history then shows; that the file was changed does the seal
    return {one.epoch: one for one in kept}


def recorded_epochs(store: Path, job: str) -> dict[int, EpochTotals]:
    """Returns the epochs that have a record, by number. Unlike `read_epochs` it takes gaps and damage as they are."""
    log = EpochLog(DirectoryStore(store), JobPaths(job))
    try:
        last = log.last()
        return _kept(store) | _recorded(log, last.newest if last is not None else None, History(store, job))
    except WeirError:
        return _kept(store) | _recorded(log, None, History(store, job))


def _recorded(log: EpochLog, newest: ManifestRef | None, history: History) -> dict[int, EpochTotals]:
    """Returns the totals of each epoch by its number. An event that a crash cut short leaves a gap."""
    found = {
        event.epoch: EpochTotals(event.epoch, event.completed_at_ms, event.ledger)
        for event in history.events()
        if isinstance(event, Completed)
    }
    if newest is not None and newest.epoch not in found:
        # A JobMaster that died right after the commit point wrote no event; the newest epoch's manifest is still there.
        manifest = log.read_manifest(newest)
        found[newest.epoch] = EpochTotals(newest.epoch, manifest.created_ms, manifest.ledger)
    return found


def per_epoch(epochs: list[EpochTotals]) -> list[tuple[int, dict[str, int]]]:
    """Returns what each epoch added to the totals."""
    before: dict[str, int] = {}
    result = []
    for one in epochs:
        result.append((one.epoch, ledger.difference(one.totals, before)))
        before = one.totals
    return result


def equations(spec: DrillSpec, epochs: list[EpochTotals], records: int) -> list[Equation]:
    """Returns the equations that hold if nothing was lost or doubled inside the job."""
    found = []
    source, sink = ledger.source_rows(spec.source_uid), ledger.sink_rows(spec.rows.uid)
    for epoch, added in per_epoch(epochs):
        for name, count in sorted(added.items()):
            if name.startswith("sent:"):
                edge = name.removeprefix("sent:")
                what = f"rows sent on {edge} = rows received"
                found.append(Equation(epoch, what, count, added.get(ledger.received(edge), 0)))
            if name.startswith("late:"):
                found.append(Equation(epoch, f"rows dropped as late by {name.removeprefix('late:')} = 0", count, 0))
        what = f"rows read by {spec.source_uid} = rows written by {spec.rows.uid}"
        found.append(Equation(epoch, what, added.get(source, 0), added.get(sink, 0)))
        edge = f"{spec.source_uid}->{spec.rows.uid}"  # it carries every record unchanged; there is none in a chain
        if ledger.sent(edge) in added:
            said = f"rows read by {spec.source_uid} = rows sent on {edge}"
            found.append(Equation(epoch, said, added.get(source, 0), added[ledger.sent(edge)]))
        if ledger.source_digest(spec.source_uid) in added:
            digests = added[ledger.source_digest(spec.source_uid)], added.get(ledger.sink_digest(spec.rows.uid), 0)
            found.append(Equation(epoch, f"digest of {what.replace(' = ', ' = digest of ')}", *map(_signed, digests)))
    read = epochs[-1].totals.get(source, 0)
    found.append(Equation(0, f"rows read by {spec.source_uid} = records of the ledger", read, records))
    return found


def _signed(digest: int) -> int:
    """Returns a digest as a signed number of 64 bits, which a column of Spark can hold."""
    return digest - (1 << 64) if digest >= 1 << 63 else digest
