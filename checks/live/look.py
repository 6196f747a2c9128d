"""Compares one live table with the job's ledger and with what earlier audits have seen. It finds facts; GX judge them.

Each run reads every file that is new since the last audit, and a share of the others, those first that were read
longest ago. The rows of a new file are digested by epoch. Of one that was found good before, the checksum of its bytes
is enough: data files never change. Whether a file is there, and as long as it was, is looked at in each run.

What an epoch must have is what its checkpoint counted, or what an earlier audit has seen. Files that were folded are
gone, and the rows of their epochs must then be in other files. Epochs that are published meanwhile wait for the next
audit, and a file that is folded and deleted meanwhile is no loss: the table is looked at again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checks.facts import Fact
from checks.live.ledger import JobLedger, Range, Unknown, added, totals_of
from checks.live.naming import Suspect, named_rows
from checks.live.record import AuditRecord, RecordStore, SeenFile
from checks.live.spans import NO_EPOCH, Ints, Layout, Spans, encoded, opened, realigned, spans_of, summed
from checks.live.table import LiveTable, PublishedFile, Snapshot
from engine.core.columns import stored_columns
from engine.core.errors import StoreError
from engine.protocol.job_description import Column, SinkDescription

LIVE_CHECKS = {
    "files_whole": "each file that readers see is there, can be read, and is as an earlier audit has read it",
    "epochs_as_counted": "each epoch has exactly the rows that its checkpoint counted and digested",
    "schema_as_declared": "each file has columns of the table, with their types, and no other",
    "spark_reads_the_same": "plain Spark reads exactly these files, and as many rows of each",
    "ledger_unchanged": "history and earlier audits say of each epoch what they said before",
}
FILES, EPOCHS, SCHEMA, SPARK, LEDGER = LIVE_CHECKS

WITHIN = 24
"""Each file is read again within so many audits."""
TRIES = 5
"""How often a table is looked at again, because files were folded and deleted while they were read."""
MOST_FACTS = 100
"""So many wrong epochs of a table are named one by one."""


class Moved(Exception):
    """A file was folded and deleted while it was read."""


@dataclass
class Looked:
    """What was found. `fresh` has the rows of each file that was read for the first time; `record` is what to keep."""

    table: str
    live: LiveTable
    snapshot: Snapshot
    facts: list[Fact]
    record: AuditRecord
    fresh: dict[str, int]
    figures: dict[str, float]
    until: int


@dataclass(frozen=True)
class _Content:
    """What is in a data file. `why`: it can't be read."""

    checksum: str
    layout: Layout
    spans: Spans
    columns: list[Column]
    why: str = ""


@dataclass
class _Run:
    """What one look has found so far."""

    snapshot: Snapshot
    until: int
    facts: list[Fact] = field(default_factory=list)
    found: dict[str, Spans] = field(default_factory=dict)
    """The spans of files that were read for the first time, or that are not as they were seen."""
    layouts: dict[str, Layout] = field(default_factory=dict)
    good: set[str] = field(default_factory=set)
    bad: set[str] = field(default_factory=set)
    odd: set[str] = field(default_factory=set)
    """Files that are gone, or not as long as they should be."""
    later: set[str] = field(default_factory=set)
    """Files with rows of epochs that the next audit compares."""
    files_read: int = 0
    bytes_read: int = 0


class TableAudit:
    """The audit of one table. `before` is what the last one has seen; None: this is the first one."""

    def __init__(
        self,
        name: str,
        live: LiveTable,
        records: RecordStore,
        before: AuditRecord | None,
        ledger: JobLedger,
        sinks: Sequence[SinkDescription],
        *,
        within: int,
        full: bool,
    ) -> None:
        self._name = name
        self._live = live
        self._records = records
        self._first = before is None
        self._before = before or AuditRecord(ledger.job_id, name)
        self._whole_ledger = self._ledger = ledger
        self._sinks = list(sinks)
        self._uids = [sink.uid for sink in sinks]
        self._within = within
        self._full = full
        self._number = self._before.number + 1
        self._seen = {file.name: file for file in self._before.files}
        self._spans: dict[str, Spans] = {}
        self._read: dict[str, _Content] = {}  # by name: what new files hold

    def look(self) -> Looked:
        for _ in range(TRIES):
            try:
                return self._look()
            except Moved:
                continue
        raise StoreError(f"{self._name}: files were deleted faster than they could be read, {TRIES} times")

    def _look(self) -> Looked:
        newest = self._live.newest()
        snapshot = self._live.snapshot(newest)
        # Between its record in the epoch log and those of the tables, a rewind has not hidden anything yet.
        whole = self._whole_ledger
        self._ledger = replace(whole, rewinds=[rewind for rewind in whole.rewinds if rewind.epoch <= newest])
        until = max((epoch for epoch in whole.totals if epoch <= newest), default=0)
        run = _Run(snapshot, max(until, 0))
        self._check_log(run)
        self._check_files(run)
        fresh = [name for name in snapshot.files if name not in {*self._seen, *run.bad}]
        for name, layout in self._live.layouts(fresh, snapshot, self._before.epoch).items():
            self._read_new(run, snapshot.files[name], layout)
        for file in self._due(run):
            self._read_again(run, file)
        owed, ranges = self._compare(run)
        self._check_history(run)
        for check in (FILES, EPOCHS, SCHEMA, LEDGER):  # a check without any fact could not run
            self._say(run, check, None, "compared", "yes", "yes")
        new = [name for name in run.layouts if name not in self._seen]
        return Looked(
            self._name,
            self._live,
            snapshot,
            run.facts,
            self._record(run, owed, ranges),
            {name: int(run.found[name].rows.sum()) for name in new if name not in run.bad | run.later},
            {
                "files": len(snapshot.files),
                "files_read": run.files_read,
                "bytes_read": run.bytes_read,
                "rows_read": sum(int(run.found[name].rows.sum()) for name in new),
            },
            run.until,
        )

    # --- the log and the files ---

    def _check_log(self, run: _Run) -> None:
        """The record of an epoch exists before the next epoch is published, and none is ever taken back."""
        due = self._before.epoch
        if any(sink in self._ledger.sinks and sink.first_epoch <= self._ledger.committed for sink in self._sinks):
            due = max(due, self._ledger.committed)
        enough = run.snapshot.newest >= due
        said = f"epoch {due} or later"
        self._say(run, FILES, due, "the newest record of the table's log", said, said if enough else _of(run.snapshot))
        for name in sorted(run.snapshot.twice):
            epoch = _first(self._seen.get(name))
            self._say(run, FILES, epoch, name, "named once by the table's log", "named twice: its rows are doubled")

    def _check_files(self, run: _Run) -> None:
        files = run.snapshot.files
        sizes = self._live.sizes(list(files))
        for name, file in files.items():
            seen = self._seen.get(name)
            if file.address != self._live.own_address:
                self._say(run, FILES, _first(seen), name, self._live.own_address, file.address)
            size = sizes[name]
            expected = seen.size if seen is not None else file.size
            said = "missing" if size is None else f"{size} bytes"
            if size == expected == file.size:
                continue
            self._moved(name)
            run.odd.add(name)
            said = said if size != expected else f"published with {file.size} bytes"
            self._say(run, FILES, _first(seen), name, f"{expected} bytes{_epochs(seen)}", said)
            if size is None:
                run.bad.add(name)
                run.found[name] = Spans.of()

    def _moved(self, name: str) -> None:
        """Raises Moved if readers do not see this file any more."""
        if name not in self._live.snapshot(self._live.newest()).files:
            raise Moved

    def _due(self, run: _Run) -> list[SeenFile]:
        """Returns the files to read again, those first that were read longest ago: each within `within` audits."""
        there = [f for f in self._seen.values() if f.name in run.snapshot.files and f.name not in run.bad]
        if self._full:
            return there
        share = sum(file.size for file in there) / self._within
        due: list[SeenFile] = []
        size = 0
        for file in sorted(there, key=lambda file: (file.read, file.first, file.name)):
            if size >= share and file.read and self._number - file.read < self._within:
                break
            due.append(file)
            size += file.size
        return [*due, *(file for file in there if file.name in run.odd)]

    def _read_again(self, run: _Run, file: SeenFile) -> None:
        if file.name in run.good or file.name in run.bad:
            return
        data = self._data(run, file.name)
        if hashlib.sha256(data).hexdigest() == file.checksum:
            run.good.add(file.name)
            return
        self._moved(file.name)
        run.bad.add(file.name)
        spans = self._stored(file)
        layouts = self._live.layouts([file.name], run.snapshot, 0)
        layout = layouts[file.name] or [(int(epoch), int(rows)) for epoch, rows, _ in spans]
        content = _decoded(data, layout, spans)
        run.layouts[file.name] = content.layout
        run.found[file.name] = content.spans
        changed = _differing(spans, summed([content.spans]))
        self._check_schema(run, file.name, file.first, content)
        rows = f"changed: {_listed(changed)}" if len(changed) else "other bytes, with the same rows"
        first = int(changed[0]) if len(changed) else file.first
        self._say(run, FILES, first, file.name, "as an audit has read it before", content.why or rows)

    def _read_new(self, run: _Run, file: PublishedFile, layout: Layout | None) -> None:
        if layout is None:
            self._moved(file.name)
            self._say(run, FILES, None, file.name, "an epoch that has published it", "nothing tells its epoch")
            layout = [(NO_EPOCH, None)]
        if all(epoch > run.until for epoch, _ in layout):
            run.later.add(file.name)
            return
        if file.name not in self._read:
            self._read[file.name] = _decoded(self._data(run, file.name), layout)
        content = self._read[file.name]
        run.layouts[file.name] = layout
        run.found[file.name] = content.spans.where(content.spans.epochs <= run.until)
        self._check_schema(run, file.name, layout[0][0], content)
        if content.why:
            self._moved(file.name)
            run.bad.add(file.name)
            self._say(run, FILES, layout[0][0], file.name, "can be read", content.why)
        elif any(epoch > run.until for epoch in content.spans.epochs):
            run.later.add(file.name)
        if file.name in run.odd:
            run.bad.add(file.name)

    def _data(self, run: _Run, name: str) -> bytes:
        try:
            data = self._live.read(name)
        except FileNotFoundError:
            self._moved(name)
            raise StoreError(f"{self._name}: {name} was there a moment ago, and is gone") from None
        run.bytes_read += len(data)
        run.files_read += 1
        return data

    def _check_schema(self, run: _Run, name: str, epoch: int, content: _Content) -> None:
        """A table gets columns and loses none: a file has the first of them, in their order."""
        if content.why:
            return
        declared = {column.name: column for sink in self._sinks for column in sink.columns}
        there = {column.name for column in content.columns}
        ours = [column for column in declared.values() if column.name in there]
        self._say(run, SCHEMA, epoch, name, ", ".join(map(str, ours)), ", ".join(map(str, content.columns)))

    # --- comparing ---

    def _compare(self, run: _Run) -> tuple[Spans, list[Range]]:
        """Compares each epoch that this run has read rows of, or that lacks files. Returns what is owed afterwards."""
        after, until = self._before.epoch, run.until
        gone = [file for name, file in self._seen.items() if name not in run.snapshot.files]
        touched = [spans.epochs for spans in run.found.values()]
        touched += [self._stored(file).epochs for file in gone]
        touched += [self._stored(self._seen[name]).epochs for name in run.bad if name in self._seen]
        owes = self._before.owes
        touched.append(owes.epochs)
        new_rewinds = [rewind for rewind in self._ledger.rewinds if rewind not in self._before.rewinds]
        for file in self._seen.values():
            if any(rewind.is_hidden(file.first) or rewind.is_hidden(file.last) for rewind in new_rewinds):
                touched.append(self._stored(file).epochs)
        epochs = np.unique(np.concatenate([np.zeros(0, np.int64), *touched]))
        old = epochs[epochs <= after]
        truth = self._truth(old)
        new = added(self._ledger, self._uids, self._begin(), until, self._known())
        singles = [one for one in new if isinstance(one, Range) and one.first == one.last]
        ranges = [one for one in new if isinstance(one, Range) and one.first < one.last]
        unknown = [one for one in new if isinstance(one, Unknown)]
        ranges += self._before.ranges
        hidden = np.array([e for e in epochs.tolist() if self._ledger.is_hidden(e)], np.int64)
        truth = summed([truth, Spans.of((one.first, one.rows, one.digest) for one in singles)])
        truth = truth.where(~np.isin(truth.epochs, hidden))
        if self._first and (begin := self._begin()) > 0:
            unknown.append(Unknown(1, begin))
        visible = self._visible(run, np.union1d(epochs, truth.epochs), ranges)
        open_ = _covered(visible.epochs, [*ranges, *unknown]) & ~np.isin(visible.epochs, hidden)
        compared = np.union1d(truth.epochs, visible.epochs[~open_])
        wrong = _unequal(truth, visible, compared)
        wrong_ranges = [one for one in ranges if visible.within(one.first, one.last).total != (one.rows, one.digest)]
        self._recheck(run, wrong, wrong_ranges)
        self._say_wrong(run, truth, visible, wrong, wrong_ranges)
        agreed = visible.where(open_ & ~_covered(visible.epochs, wrong_ranges))
        return self._owed(run, summed([truth, agreed]), wrong, wrong_ranges), wrong_ranges

    def _begin(self) -> int:
        """Returns the epoch behind which the ledger tells what was added: the last audit's, or the first sink's."""
        if not self._first:
            return self._before.epoch
        firsts = [sink.first_epoch for sink in self._sinks]
        return max(self._live.first_epoch, min(firsts, default=1)) - 1

    def _known(self) -> dict[int, tuple[int, int]]:
        """Returns totals of the table that the history may not have: at the last audit, and where rewinds went back."""
        before = self._before
        if self._first:
            begin = self._begin()
            new = all(sink.first_epoch == begin + 1 for sink in self._sinks)
            zero = new if begin else not self._ledger.begun_elsewhere
            return {begin: (0, 0)} if zero else {}
        if not before.whole:
            return {}
        known = {before.epoch: (before.rows, before.digest)}
        for rewind in self._ledger.rewinds:
            if rewind.back_to is not None and rewind.back_to < before.epoch < rewind.epoch:
                hidden = self._truth(np.arange(rewind.back_to + 1, before.epoch + 1))
                rows, digest = hidden.total
                known[rewind.epoch] = (before.rows - rows, (before.digest - digest) % (1 << 64))
        return known

    def _truth(self, epochs: Ints) -> Spans:
        """Returns what these epochs must have, as the last audit has seen it, or as it owes it."""
        owes = self._before.owes.of_epochs(epochs)
        seen = summed(self._stored(f).of_epochs(epochs) for f in self._seen.values() if _overlaps(f, epochs))
        return summed([seen.where(~np.isin(seen.epochs, owes.epochs)), owes])

    def _visible(self, run: _Run, epochs: Ints, ranges: Sequence[Range]) -> Spans:
        """Returns the rows of these epochs that readers see: as found in this run, or as seen by an earlier audit."""
        parts = [spans for name, spans in run.found.items() if name in run.snapshot.files]
        for name, file in self._seen.items():
            if name in run.snapshot.files and name not in run.found:
                inside = any(one.first <= file.last and file.first <= one.last for one in ranges)
                if inside or _overlaps(file, epochs):
                    spans = self._stored(file)
                    parts.append(spans.where(np.isin(spans.epochs, epochs) | _covered(spans.epochs, ranges)))
        return summed(parts)

    def _recheck(self, run: _Run, wrong: Ints, ranges: Sequence[Range]) -> None:
        """Reads the other files of wrong epochs again, to find the one that was changed."""
        for name, file in self._seen.items():
            if name in run.snapshot.files and (_overlaps(file, wrong) or any(_meets(file, one) for one in ranges)):
                self._read_again(run, file)

    def _owed(self, run: _Run, truth: Spans, wrong: Ints, ranges: Sequence[Range]) -> Spans:
        """Returns what the record has to say of epochs whose files it can't name as seen."""
        waiting = [
            spans.epochs
            for name, spans in run.found.items()
            if name not in self._seen and not self._is_good(run, name, wrong, ranges)
        ]
        return truth.of_epochs(np.unique(np.concatenate([wrong, *waiting])))

    def _is_good(self, run: _Run, name: str, wrong: Ints, ranges: Sequence[Range]) -> bool:
        if name in run.bad or name in run.later:
            return False
        epochs = run.found[name].epochs
        return not np.isin(epochs, wrong).any() and not _covered(epochs, ranges).any()

    def _record(self, run: _Run, owed: Spans, ranges: list[Range]) -> AuditRecord:
        files: list[SeenFile] = []
        for name, published in run.snapshot.files.items():
            seen = self._seen.get(name)
            if seen is not None:
                read = self._number if name in run.good else 0 if name in run.bad else seen.read
                files.append(msgspec.structs.replace(seen, read=read))
            elif name in run.found and self._is_good(run, name, owed.epochs, ranges):
                files.append(
                    self._records.seen(name, published.size, self._read[name].checksum, self._number, run.found[name])
                )
        rows, digest = totals_of(self._uids, self._ledger.totals.get(run.until, {}))
        return AuditRecord(
            self._ledger.job_id,
            self._name,
            self._number,
            self._begin() if self._first else self._before.begin,
            run.until,
            rows,
            digest,
            run.until in self._ledger.totals,
            files,
            encoded(owed) if len(owed) else b"",
            ranges,
            self._ledger.rewinds,
            self._sinks,
        )

    def _stored(self, file: SeenFile) -> Spans:
        if file.name not in self._spans:
            self._spans[file.name] = self._records.spans(file)
        return self._spans[file.name]

    # --- the ledger ---

    def _check_history(self, run: _Run) -> None:
        """What the history says of epochs that were audited is what it said then, or what was seen of them."""
        if not self._first and (known := [e for e in self._ledger.totals if 0 < e <= self._before.epoch]):
            begin = max(min(known), self._before.begin)
            says = added(self._ledger, self._uids, begin, self._before.epoch, {})
            singles = [one for one in says if isinstance(one, Range) and one.first == one.last]
            epochs = np.array([one.first for one in singles], np.int64)
            rows, digests = self._truth(epochs).at(epochs)
            for one, had, digest in zip(singles, rows.tolist(), digests.tolist(), strict=True):
                if (one.rows, one.digest) != (had, digest):
                    self._say(run, LEDGER, one.first, "the history", said(had, digest), said(one.rows, one.digest))

    # --- saying it ---

    def _say(self, run: _Run, check: str, epoch: int | None, what: str, expected: str, found: str) -> None:
        run.facts.append(Fact(check, self._name, epoch, what, expected, found))

    def _say_wrong(self, run: _Run, truth: Spans, visible: Spans, wrong: Ints, ranges: Sequence[Range]) -> None:
        want, have = list(zip(*truth.at(wrong), strict=True)), list(zip(*visible.at(wrong), strict=True))
        shown = wrong[:MOST_FACTS].tolist()
        differences = {
            epoch: (int(have[n][0]) - int(want[n][0]), (int(have[n][1]) - int(want[n][1])) % (1 << 64))
            for n, epoch in enumerate(shown)
        }
        names = named_rows(differences, self._suspects(run, wrong[:MOST_FACTS]))
        for number, epoch in enumerate(shown):
            rows, digest = want[number]
            there = said(int(have[number][0]), int(have[number][1]))
            what = f"rows in {self._files_of(run, epoch)}"
            label = names.get(epoch) or _label(differences[epoch][0])
            self._say(run, EPOCHS, epoch, what, said(int(rows), int(digest)), f"{there}: {label}")
        if len(wrong) > MOST_FACTS:
            rest = _listed(wrong[MOST_FACTS:])
            self._say(run, EPOCHS, int(wrong[MOST_FACTS]), "more epochs", "as counted", f"other rows: {rest}")
        for one in ranges:
            there = said(*visible.within(one.first, one.last).total)
            what = f"rows of epochs {one.first} to {one.last} in all"
            self._say(run, EPOCHS, one.first, what, said(one.rows, one.digest), there)

    def _suspects(self, run: _Run, wrong: Ints) -> Iterator[Suspect]:
        """Yields the files that readers see of these epochs, with what is in them."""
        for name in run.snapshot.files:
            seen = self._seen.get(name)
            spans = run.found.get(name) if name in run.found or seen is None else self._stored(seen)
            if spans is None or not np.isin(spans.epochs, wrong).any():
                continue
            layout = run.layouts.get(name) or self._live.layouts([name], run.snapshot, 0)[name]
            if layout is not None:
                yield Suspect(name, partial(self._live.read, name), layout)

    def _files_of(self, run: _Run, epoch: int) -> str:
        """Returns the files with rows of an epoch, those first that were changed."""
        one = np.array([epoch], np.int64)
        names = [
            name
            for name in {**run.snapshot.files, **self._seen}
            if (name in run.found and np.isin(run.found[name].epochs, one).any())
            or (
                name in self._seen
                and _overlaps(self._seen[name], one)
                and epoch in self._stored(self._seen[name]).epochs
            )
        ]
        changed = [name for name in names if name in run.bad or name not in run.snapshot.files]
        names = changed or names
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return (", ".join(names[:3]) or "no file") + more


def _decoded(data: bytes, layout: Layout, expected: Spans | None = None) -> _Content:
    """Reads a file. `expected`: what should be there, if that is known and something else is."""
    checksum = hashlib.sha256(data).hexdigest()
    try:
        file = opened(data)
        if expected is not None:
            layout = realigned(file, layout, expected)
        return _Content(checksum, layout, spans_of(file, layout), stored_columns(file.schema_arrow))
    except (pa.ArrowException, OSError, TypeError) as error:
        return _Content(checksum, layout, Spans.of(), [], f"no Parquet file: {' '.join(str(error).split())[:200]}")


def said(rows: int, digest: int) -> str:
    return f"{rows} rows with digest {digest:016x}"


def _label(more: int) -> str:
    if more < 0:
        return f"{-more} lost"
    return f"{more} too many" if more else "altered, or put in the place of others"


def _of(snapshot: Snapshot) -> str:
    return f"epoch {snapshot.newest}" if snapshot.newest else "none"


def _first(file: SeenFile | None) -> int | None:
    return file.first if file is not None else None


def _epochs(file: SeenFile | None) -> str:
    if file is None:
        return ""
    return f", epoch {file.first}" if file.first == file.last else f", epochs {file.first} to {file.last}"


def _overlaps(file: SeenFile, epochs: Ints) -> bool:
    """Says whether a file may have rows of these epochs, which are in order."""
    place = int(np.searchsorted(epochs, file.first))
    return place < len(epochs) and int(epochs[place]) <= file.last


def _meets(file: SeenFile, one: Range) -> bool:
    return one.first <= file.last and file.first <= one.last


def _covered(epochs: Ints, ranges: Iterable[Range | Unknown]) -> npt.NDArray[np.bool_]:
    inside = np.zeros(len(epochs), bool)
    for one in ranges:
        inside |= (epochs >= one.first) & (epochs <= one.last)
    return inside


def _unequal(truth: Spans, visible: Spans, epochs: Ints) -> Ints:
    (rows, digests), (there, found) = truth.at(epochs), visible.at(epochs)
    wrong: Ints = epochs[(rows != there) | (digests != found)]
    return wrong


def _differing(before: Spans, now: Spans) -> Ints:
    return _unequal(before, now, np.union1d(before.epochs, now.epochs))


def _listed(epochs: Ints) -> str:
    """Returns epochs in words: `epoch 7`, `epochs 7, 9, 12`, `20 epochs from 7 to 40`."""
    if len(epochs) == 1:
        return f"epoch {int(epochs[0])}"
    if len(epochs) <= 5:
        return f"epochs {', '.join(map(str, epochs.tolist()))}"
    return f"{len(epochs)} epochs from {int(epochs[0])} to {int(epochs[-1])}"
