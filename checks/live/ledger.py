"""What each epoch must have added to a table, as the job's own ledger says: never from the table.

The history has the ledger's totals of some thousands of checkpoints, the manifests those of the newest epochs. What an
epoch added is the difference of two totals. Where the history has a gap, one difference covers all epochs in it: the
sum of all rows is always known, so no epoch is ever left out, it is only not told from its neighbours.

A rewind begins a new epoch with the totals of an older one. The epoch log keeps all rewinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from engine.core.errors import CorruptSnapshot, WeirError
from engine.core.paths import JobPaths
from engine.jobmaster.events import Completed
from engine.observe.history import History
from engine.protocol import ledger
from engine.protocol.epoch_records import LogRecord
from engine.protocol.job_description import SinkDescription
from engine.protocol.manifest import Manifest, ManifestRef
from engine.snapshot.epoch_log import EpochLog
from engine.store.opening import open_store

MANIFESTS = 20
"""So many of the newest epochs are asked for their manifests; a job retains few."""


class NothingToAudit(WeirError):
    """The job has published no epoch, or writes no table."""


class Rewind(msgspec.Struct, frozen=True):
    """Epoch `epoch` has the state of `back_to`, if that is known. `hides`: tables hide what is between the two."""

    epoch: int
    back_to: int | None
    hides: bool

    def is_hidden(self, epoch: int) -> bool:
        return self.hides and self.back_to is not None and self.back_to < epoch < self.epoch


@dataclass(frozen=True)
class Range:
    """The epochs `first` to `last` together added these rows; usually they are one epoch."""

    first: int
    last: int
    rows: int
    digest: int


@dataclass(frozen=True)
class Unknown:
    """Nobody knows any more what these epochs added."""

    first: int
    last: int


@dataclass
class JobLedger:
    """All that is known of a job's epochs.

    All output up to epoch `committed` is in the tables: it was committed before `newest` was published.
    """

    job_id: str
    newest: int
    committed: int
    sinks: Sequence[SinkDescription]
    totals: dict[int, dict[str, int]]
    rewinds: list[Rewind] = field(default_factory=list)
    begun_elsewhere: bool = False

    def is_hidden(self, epoch: int) -> bool:
        return any(rewind.is_hidden(epoch) for rewind in self.rewinds)


def read_ledger(store: str, job: str) -> JobLedger:
    log = EpochLog(open_store(store), JobPaths(job))
    last = log.last()
    if last is None or last.newest is None or not last.newest.epoch:
        raise NothingToAudit(f"job {job!r} has published no epoch in {store} yet: there is nothing to audit")
    refs = list(islice(log.epochs(), MANIFESTS))
    manifests = dict(_manifests(log, refs))
    if last.newest.epoch not in manifests:
        raise WeirError(f"the manifest of epoch {last.newest.epoch} of job {job!r} can't be read: audit again")
    newest = last.newest.epoch
    committed = max((ref.epoch for ref in refs if ref.epoch < newest), default=0)
    found = JobLedger(last.job_id, newest, committed, manifests[newest].description.sinks, {})
    found.totals = {e.epoch: e.ledger for e in History(store, job).events() if isinstance(e, Completed)}
    found.totals |= {epoch: manifest.ledger for epoch, manifest in manifests.items()}
    found.rewinds = [_rewind(record, manifests) for record in log.rewinds()]
    found.begun_elsewhere = log.begins_elsewhere()
    return found


def _manifests(log: EpochLog, refs: Sequence[ManifestRef]) -> Iterator[tuple[int, Manifest]]:
    for ref in refs:
        with suppress(CorruptSnapshot, FileNotFoundError):  # retention has deleted it
            yield ref.epoch, log.read_manifest(ref)


def _rewind(record: LogRecord, manifests: Mapping[int, Manifest]) -> Rewind:
    """Records of earlier versions do not say where a rewind went; its manifest does, as long as it is there."""
    assert record.newest is not None
    manifest = manifests.get(record.newest.epoch)
    if record.back_to is None and manifest is not None and manifest.rewound_to is not None:
        return Rewind(record.newest.epoch, manifest.rewound_to, True)
    return Rewind(record.newest.epoch, record.back_to, record.hides)


Totals = tuple[int, int]
"""Rows and digest that the sinks of a table have written in all."""


def added(
    of: JobLedger, uids: Sequence[str], after: int, until: int, known: Mapping[int, Totals]
) -> list[Range | Unknown]:
    """Returns what the epochs after `after`, up to `until`, added to the table of these sinks.

    `known` has totals of the table that only an earlier audit knows, by epoch. What a rewind has hidden is left out:
    its totals count for nothing that comes later.
    """
    totals = {epoch: totals_of(uids, total) for epoch, total in of.totals.items()} | dict(known)
    rewinds = {rewind.epoch: rewind for rewind in of.rewinds if not of.is_hidden(rewind.epoch)}
    for epoch, rewind in rewinds.items():
        if epoch not in totals and rewind.back_to is not None and rewind.back_to in totals:
            totals[epoch] = totals[rewind.back_to]
    found: list[Range | Unknown] = []
    behind = after
    for epoch in sorted(epoch for epoch in totals if after < epoch <= until and not of.is_hidden(epoch)):
        begin = rewinds.get(epoch)
        if begin is not None and not begin.hides:  # what was published stays, and is not among these totals
            found += [Unknown(behind + 1, epoch - 1)] if behind < epoch - 1 else []
        elif of.is_hidden(behind):  # what is behind a rewind is counted from it
            found += [] if begin is not None else [Unknown(behind + 1, epoch)]
        elif behind in totals and not _repeats(rewinds, behind, epoch):
            found.append(_between(totals, behind, epoch))
        elif begin is None:
            found.append(Unknown(behind + 1, epoch))
        behind = epoch
    return found


def _repeats(rewinds: Mapping[int, Rewind], behind: int, epoch: int) -> bool:
    """Says whether the job went back in between and published some records again: then totals can't be compared."""
    return any(not rewind.hides and behind < rewind.epoch < epoch for rewind in rewinds.values())


def _between(totals: Mapping[int, Totals], behind: int, epoch: int) -> Range:
    (rows, digest), (rows_before, digest_before) = totals[epoch], totals[behind]
    return Range(behind + 1, epoch, rows - rows_before, (digest - digest_before) % (1 << 64))


def totals_of(uids: Sequence[str], totals: Mapping[str, int]) -> Totals:
    rows = sum(totals.get(ledger.sink_rows(uid), 0) for uid in uids)
    return rows, sum(totals.get(ledger.sink_digest(uid), 0) for uid in uids) % (1 << 64)
