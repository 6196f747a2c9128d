"""Checks the invariants of a run at every moment. The checker sees the whole store; the engine does not know of it.

log        records have no gaps; a fence adds one generation, an epoch record keeps it
standby    a standby that was not told to take over touches nothing
one_owner  a generation has one owner, and only it publishes; who believes to own the job has made a fence that counts
epochs     epoch numbers have no gaps; checkpoint numbers increase
durable    every file of a published epoch is synced and has its checksum; no process deletes it while it is needed
retained   the state of the newest epochs is kept, as many as the job wants
commit     readers see exactly the rows of the published epochs 1..n, in the files of these epochs or in folded ones
reader     a file stays for a while after readers have stopped to see it (tables.py)
epoch_rows an audit finds the rows of each epoch, in folded files too
ledger     the equations of every published manifest hold; the checker computes them again
connected  a job is said to be running only when all of its channels are connected (ports.py checks it)
mounted    no record of the log is created while an empty folder is in the place of the store, but by work that was
           under way when it went (store.py checks it); and nobody takes such a record for made
drift      no split of an aligned source is read further ahead of the slowest than its group allows (drifting.py)
watermarks the watermark of no key group falls from one epoch to the next, nor does the latest event time of a source
no_loss, no_duplicate, no_phantom, keys, state, operator_state, broadcast_state, no_reopened_window, exact_result,
timers (each fires once), watermark_order (no watermark passes before its timers)
           the oracle (jobs.py) checks these at every epoch
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.protocol.config import CheckpointConfig, CheckpointingMode
from engine.protocol.epoch_records import LogRecord, RecordKind
from engine.protocol.manifest import Manifest
from engine.runtime.timers import PROCESSING_TIMERS
from engine.snapshot.statefile import checksum
from engine.state.key_hash import hash_columns
from engine.state.partial_matches import WAITING as PATTERN_WAITING
from tests.simulation import generated
from tests.simulation.folder import file_of
from tests.simulation.jobs import JobSpec, Oracle, Rows, Seen, all_positions, digest_of, numbers
from tests.simulation.sessions import CONTENTS, held_in
from tests.simulation.store import SimStore
from tests.simulation.tables import KEPT_RECORDS, Tables
from tests.simulation.timed import PENDING, WAITING
from tests.simulation.world import Violation


def check_claimed(records: Sequence[LogRecord], owner: str, generation: int) -> None:
    """Checks a JobMaster that takes the job for its own. A fence where an old record was deleted does not count."""
    if not any((record.owner, record.generation) == (owner, generation) for record in records):
        raise Violation("one_owner", f"{owner} believes that it owns generation {generation}, and has no fence")


def check_completed(records: Sequence[LogRecord], visible: int, owner: str, epoch: int) -> None:
    """Checks a JobMaster that says that an epoch is committed. A record where the store is not mounted is none."""
    if not any(record.owner == owner and record.newest and record.newest.epoch == epoch for record in records):
        raise Violation("mounted", f"{owner} says that epoch {epoch} is committed, and has not published it")
    if visible < epoch:
        raise Violation("mounted", f"{owner} says that epoch {epoch} is committed, and readers see {visible}")


class Checker:
    def __init__(self, store: SimStore, spec: JobSpec, checkpoints: CheckpointConfig, job: str = "job") -> None:
        mode = checkpoints.mode
        self._job = job
        self.epochs: list[Manifest] = []
        self.records: list[LogRecord] = []
        self.visible = 0  # epochs that are committed to every table
        self._store = store
        self._spec = spec
        self._mode = mode
        self._retained = checkpoints.retained
        self._oracle = Oracle(spec, mode)
        self._seen = Seen({table: [] for table in spec.tables})
        self._digests: dict[str, int] = dict.fromkeys(spec.tables, 0)
        self._published_files: set[str] = set()
        self._manifests: dict[int, str] = {}
        self._owners: set[str] = set()
        self._committed: dict[str, int] = dict.fromkeys(spec.tables, 0)
        self.tables = Tables(store, job)
        self._forgotten: set[str] = set()  # records that were deleted; a late repetition may make one again
        self._watermarks: dict[tuple[str, int], int] = {}  # by operator and key group
        self._latest: dict[str, int] = {}  # by split: the latest event time
        self.uneven_ms: list[float] = []  # when epochs were published in which key groups of one operator differ
        store.on_created = self._created
        store.on_deleted = self._deleted

    # --- events of the store ---

    def _created(self, path: str, data: bytes) -> None:
        if path.startswith(f"{self._job}/log/"):
            self._logged(path, msgspec.json.decode(data, type=LogRecord))
        elif "/_spark_metadata/" in path and not path.endswith((".json", ".checksum")):
            self._committed_epoch(path, data)

    def _deleted(self, path: str) -> None:
        if path.startswith(f"{self._job}/log/"):
            self._check_forgotten(path)
        elif path.startswith(f"{self._job}/tables/") and (path in self._published_files or "/_spark" in path):
            self.tables.check_deleted(path, self.kept_epochs())
        if "/log/" in path or "/_spark_metadata/" in path:
            self._forgotten.add(path)
        for manifest in self.epochs[-self._retained :]:
            needed = {file.path for subtask in manifest.subtasks for file in subtask.files}
            if path in needed or path == self._manifests.get(manifest.epoch):
                newest = manifest is self.epochs[-1]
                raise Violation("durable" if newest else "retained", f"{path} of epoch {manifest.epoch} is deleted")

    def kept_epochs(self) -> list[int]:
        """Returns the epochs to which a person may go back."""
        return sorted({record.newest.epoch for record in self.records if record.newest is not None})[-self._retained :]

    def _check_forgotten(self, path: str) -> None:
        """Only old epoch records go, so that a JobMaster that was replaced always finds the fence behind its last."""
        record = next(record for record in self.records if path.endswith(f"/{record.number:010d}.json"))
        kept = record.newest is not None and record.newest.epoch in self.kept_epochs()
        recent = record.number >= self.records[-1].number - KEPT_RECORDS
        if kept or recent or record.number == 1 or record.kind is RecordKind.FENCE:
            raise Violation("durable", f"{path} is deleted: {record}")
        self._store.world.hits.add("log: an old record is deleted")

    # --- the log ---

    def _logged(self, path: str, record: LogRecord) -> None:
        if path in self._forgotten:
            return  # made again by one who did not know whether it had been made; nobody reads it
        last = self.records[-1] if self.records else None
        number = last.number + 1 if last else 1
        if record.number != number or path != f"{self._job}/log/{number:010d}.json":
            raise Violation("log", f"{path} holds record {record.number} where {number} is due")
        if record.kind is RecordKind.FENCE:
            if record.generation != (last.generation + 1 if last else 1):
                raise Violation("log", f"a fence of generation {record.generation} follows {last}")
            if record.owner in self._owners and self._owner_of(record.owner) == record.generation:
                raise Violation("log", f"{record.owner} fences generation {record.generation} twice")
            if last is not None and record.newest != last.newest:
                raise Violation("log", f"the fence {record.number} changes the newest epoch")
            self._owners.add(record.owner)
        else:
            if last is None or (record.generation, record.owner) != (last.generation, last.owner):
                raise Violation(
                    "one_owner", f"{record.owner} publishes into {last.owner if last else 'nothing'}'s generation"
                )
            self._published(record)
        self.records.append(record)

    def _owner_of(self, owner: str) -> int:
        return max((r.generation for r in self.records if r.owner == owner), default=0)

    def _published(self, record: LogRecord) -> None:
        ref = record.newest
        assert ref is not None
        if ref.epoch != len(self.epochs) + 1:
            raise Violation("epochs", f"epoch {ref.epoch} follows epoch {len(self.epochs)}")
        if self.epochs and ref.checkpoint <= self.epochs[-1].checkpoint:
            raise Violation("epochs", f"checkpoint {ref.checkpoint} was published before")
        if self.visible < len(self.epochs):
            raise Violation("commit", f"epoch {ref.epoch} is published before epoch {len(self.epochs)} is committed")
        manifest = msgspec.json.decode(self._durable(ref.path, ref.checksum), type=Manifest)
        if manifest.attempt.generation != record.generation:
            raise Violation("one_owner", f"generation {record.generation} publishes a manifest of {manifest.attempt}")
        if self.epochs and manifest.attempt < self.epochs[-1].attempt:
            raise Violation("attempts", f"attempt {manifest.attempt} publishes after {self.epochs[-1].attempt}")
        self._seen.pane_rows, self._seen.held, self._seen.waiting, self._seen.unpaired = 0, [], {}, 0
        for state in manifest.subtasks:
            for file in state.files:
                data = self._durable(file.path, file.checksum)
                if file.name in ("panes", "sessions"):
                    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
                    self._seen.pane_rows += sum(table.column("_rows").to_pylist())
                elif file.name == "held":
                    records = pa.ipc.open_file(pa.BufferReader(data)).read_all().column("value").to_pylist()
                    self._seen.held += [tuple(record.values()) for record in records]
                elif file.uid == "joined":
                    self._seen.unpaired += file.rows
                elif file.name == CONTENTS:
                    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
                    items = table.column("_item").to_pylist()
                    records = [number for item in items for number in held_in(item)]
                    self._seen.waiting.setdefault(CONTENTS, []).extend(records)
                elif file.name in (WAITING, PENDING):
                    records = pa.ipc.open_file(pa.BufferReader(data)).read_all().column("_map_key").to_pylist()
                    self._seen.waiting.setdefault(file.name, []).extend(records)
                elif file.name == PATTERN_WAITING:
                    records = pa.ipc.open_file(pa.BufferReader(data)).read_all().column("_record").to_pylist()
                    self._seen.waiting.setdefault(file.name, []).extend(record["n"] for record in records)
        self._publish_rows(manifest)
        self._check_ledger(manifest)
        self._check_watermarks(manifest)
        self.epochs.append(manifest)
        self._manifests[manifest.epoch] = ref.path
        self._oracle.check_cut(self._seen)

    def _durable(self, path: str, expected: str | None) -> bytes:
        data = self._store.durable.get(path)
        if path in self._store.cached or data is None:
            raise Violation("durable", f"{path} is published and not synced")
        if expected is not None and checksum(data) != expected:
            raise Violation("durable", f"{path} is published and is not what was written")
        return data

    def _publish_rows(self, manifest: Manifest) -> None:
        for committable in manifest.commits:
            path = committable.payload["path"]
            if path in self._published_files:
                raise Violation("no_duplicate", f"{path} is published by two epochs")
            self._published_files.add(path)
            data = self._durable(path, None)
            if len(data) != committable.payload["size"]:
                raise Violation("durable", f"{path} has {len(data)} bytes, not {committable.payload['size']}")
            table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
            self._seen.tables[committable.uid] += _tuples(table)
            self.tables.rows([path])  # kept, because the file may be folded and deleted later
            digest = np.add.reduce(hash_columns([c.combine_chunks() for c in table.columns]))
            self._digests[committable.uid] = (self._digests[committable.uid] + int(digest)) % (1 << 64)
        self._see_positions(manifest)

    def _see_positions(self, manifest: Manifest) -> None:
        self._seen.positions = self._files(manifest) if self._spec.folder else _positions(manifest, "source")
        self._seen.rules = _positions(manifest, "rules")
        self._seen.late_rows = sum(manifest.ledger.get(f"late:{uid}", 0) for uid in ("pv", "joined"))

    def _files(self, manifest: Manifest) -> dict[str, int]:
        """Returns the positions in a folder: 0 for files not found yet, their ends for files that were closed."""
        ends = all_positions(self._spec.splits, self._spec.rows)
        found = {file_of(split): position for split, position in _positions(manifest, "source").items()}
        for state in manifest.subtasks:
            for split in state.inline.get("source", {}).get("finished", ()):
                found[file_of(split)] = ends[file_of(split)]
        return dict.fromkeys(ends, 0) | found

    # --- the ledger, computed again from the files ---

    def _check_ledger(self, manifest: Manifest) -> None:
        ledger = manifest.ledger
        base = self.epochs[-1].ledger if self.epochs else {}
        exact = self._mode is CheckpointingMode.EXACTLY_ONCE
        for name in sorted(ledger):
            if ledger[name] < base.get(name, 0) and not name.startswith("digest:"):
                raise Violation("ledger", f"epoch {manifest.epoch}: {name} falls to {ledger[name]}")
            if name.startswith("sent:"):
                sent, received = ledger[name], ledger.get(f"received:{name[5:]}", 0)
                if received != sent if exact else received < sent:
                    raise Violation("ledger", f"epoch {manifest.epoch}: {name[5:]}: {sent} sent, {received} received")
        read = sum(self._seen.positions.values())
        if ledger.get("source:source", 0) != read:
            raise Violation(
                "ledger", f"epoch {manifest.epoch}: {ledger.get('source:source', 0)} rows read, positions {read}"
            )
        if ledger.get("digest:source:source", 0) != digest_of(
            self._spec, numbers(self._spec.splits, self._seen.positions)
        ):
            raise Violation("ledger", f"epoch {manifest.epoch}: other records were read than the positions say")
        for table, rows in self._seen.tables.items():
            if ledger.get(f"sink:{table}", 0) != len(rows):
                raise Violation(
                    "ledger",
                    f"epoch {manifest.epoch}: {ledger.get(f'sink:{table}')} rows in {table}, {len(rows)} found",
                )
            if ledger.get(f"digest:{table}", 0) != self._digests[table]:
                raise Violation(
                    "ledger", f"epoch {manifest.epoch}: the rows in {table} do not have the digest of the ledger"
                )

    # --- event time ---

    def _check_watermarks(self, manifest: Manifest) -> None:
        now: dict[tuple[str, int], int] = {}
        latest: dict[str, int] = {}
        for state in manifest.subtasks:
            for uid, inline in state.inline.items():
                for start, end, watermark in inline.get("watermarks", ()):
                    now |= dict.fromkeys(((uid, group) for group in range(start, end)), watermark)
                ended = inline.get("finished", {})
                seen = {split: held["seen_ms"] for split, held in inline.get("splits", {}).items()} | ended
                latest |= generated.check(manifest.epoch, uid, inline)
                latest |= {f"{uid}/{split}": time for split, time in seen.items() if time is not None}
        for what, before, after in (("key group", self._watermarks, now), ("split", self._latest, latest)):
            for of, time in before.items():
                if after.get(of, time - 1) < time:
                    raise Violation("watermarks", f"epoch {manifest.epoch}: {what} {of}: {after.get(of)} after {time}")
        self._watermarks, self._latest = now, latest
        if any(len({mark for (uid, _), mark in now.items() if uid == of}) > 1 for of in {uid for uid, _ in now}):
            self.uneven_ms.append(self._store.world.now_ms)

    # --- the tables, as a reader sees them ---

    def _committed_epoch(self, path: str, data: bytes) -> None:
        table, name = path.split("/")[2], path.rsplit("/", 1)[1]
        epoch = int(name.removesuffix(".compact")) + 1
        if path in self._forgotten and epoch <= self._committed[table]:
            self.read_as_spark(table)
            return
        if epoch > len(self.epochs):
            raise Violation("commit", f"{path} makes epoch {epoch} visible, and the log has only {len(self.epochs)}")
        if epoch != self._committed[table] + 1:
            raise Violation("commit", f"{path} follows epoch {self._committed[table]}")
        self._committed[table] = epoch
        self.visible = min(self._committed.values())
        self.read_as_spark(table)

    def read_as_spark(self, table: str) -> None:
        """Checks that readers see exactly the rows of the committed epochs, each once."""
        files = self.tables.on_record(table)
        epochs = self.epochs[: self._committed[table]]
        due = [path for m in epochs for path in _of_table(m, table)]
        if sorted(files) != sorted(due) and (
            len(set(files)) < len(files) or self.tables.rows(files) != self.tables.rows(due)
        ):
            odd = sorted(set(files) ^ set(due))
            raise Violation("commit", f"readers of {table} see other rows than epochs 1..{len(epochs)}: {odd[:4]}")

    # --- the end ---

    def check_finished(self) -> None:
        if not self.epochs or not self.epochs[-1].final:
            raise Violation("finishes", "the newest epoch is not a final one")
        if self.visible != len(self.epochs):
            raise Violation("commit", f"finished with {len(self.epochs)} epochs, of which {self.visible} are visible")
        for table in self._committed:
            self.read_as_spark(table)
            due = [(m.epoch, _of_table(m, table)) for m in self.epochs]
            self.tables.check_epochs(table, {epoch: self.tables.rows(paths) for epoch, paths in due})
        self._oracle.check_final(self._seen)

    def final_state(self) -> dict[str, Any]:
        """Returns keyed state, positions and watermarks of the last epoch, in a form independent of files and order."""
        result: dict[str, Any] = {}
        for state in self.epochs[-1].subtasks:
            for file in state.files:
                table = pa.ipc.open_file(pa.BufferReader(self._store.durable[file.path])).read_all()
                rows = _tuples(table)
                if file.name in ("held", "lines"):  # which subtask has which element is random
                    continue
                if file.name in (PENDING, PROCESSING_TIMERS):  # the clock is random
                    continue
                if file.name == "reduced":  # which record came last is random; the sum is not
                    rows = [(key, value["v"]) for key, value in rows]
                result.setdefault(f"{file.uid}/{file.name}", []).extend(rows)
            for uid, inline in state.inline.items():
                if uid == "source" and self._spec.folder:  # it is random which files are closed already
                    continue
                # How far a source's watermark has come depends on the order in which its splits were read.
                kept = {name: value for name, value in inline.items() if name != "watermark"}
                result.setdefault(uid, []).append(json.dumps(kept, sort_keys=True))
        return {name: sorted(rows, key=repr) for name, rows in result.items()}

    def final_rows(self) -> dict[str, Rows]:
        return {table: sorted(rows, key=repr) for table, rows in self._seen.tables.items()}


def _of_table(manifest: Manifest, table: str) -> list[str]:
    """Returns the files that an epoch publishes in this table."""
    return [c.payload["path"] for c in manifest.commits if c.payload["path"].split("/")[2] == table]


def _positions(manifest: Manifest, source: str) -> dict[str, int]:
    splits = [state.inline.get(source, {}).get("splits", {}) for state in manifest.subtasks]
    return {split: held["position"] for of_subtask in splits for split, held in of_subtask.items()}


def _tuples(table: pa.Table) -> Rows:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
