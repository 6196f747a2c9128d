"""`DeadLetterCommitter` splits the rows of an epoch that a gate refuses: those go to a table of their own.

Splitting writes files that no record names yet; a restore deletes those that no epoch has published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from engine.connectors.table.committer import SPLIT_FROM, TableCommitter, as_plain, kept_name_of
from engine.connectors.table.log import file_name
from engine.connectors.table.rows import digest_of, encoded, read_rows
from engine.core.errors import StoreError
from engine.core.ports import Store
from engine.core.sinks import Committer, Found, Tidied, Withheld
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable

_MODULUS = 1 << 64


class DeadLetterCommitter(Committer):
    """Publishes the epochs of two tables: one for the rows that pass a gate, and one for those that it refuses.

    Both have a record of every epoch, made after the same commit point. The dead letters are committed first.
    """

    def __init__(self, store: Store, table: str, dead: str, passed: TableCommitter, refused: TableCommitter) -> None:
        self._store = store
        self._table = table
        self._dead = dead
        self._passed = passed
        self._refused = refused

    def withhold(self, committables: Sequence[Committable], refused: Mapping[str, Sequence[int]] | None) -> Withheld:
        commits: list[Committable] = []
        total, digests, written = 0, 0, []
        for one in committables:
            path = one.payload["path"]
            rows = read_rows(self._store, path)
            bad = np.ones(rows.num_rows, bool) if refused is None else np.zeros(rows.num_rows, bool)
            if refused is not None:
                bad[list(refused.get(path, ()))] = True
            if not bad.any():
                commits.append(one)
                continue
            aside, kept = rows.filter(pa.array(bad)), rows.filter(pa.array(~bad))
            total, digests = total + aside.num_rows, digests + digest_of(aside)
            of = {SPLIT_FROM: path}
            commits.append(_moved(one, self._write(f"{self._dead}/{file_name(path)}", aside) | of))
            if kept.num_rows:
                commits.append(_moved(one, self._write(f"{self._table}/{kept_name_of(file_name(path))}", kept)))
            written += [c.payload["path"] for c in commits if c.identity == one.identity]
        self._store.sync(written)
        return Withheld(commits, total, digests % _MODULUS)

    def _write(self, path: str, rows: pa.Table) -> dict[str, Any]:
        data = encoded(rows)
        self._store.write(path, data)
        return {"path": path, "size": len(data), "rows": rows.num_rows}

    # --- both tables ---

    def look(self, job_id: str, epoch: int) -> Found:
        self._refused.look(job_id, epoch)
        return self._passed.look(job_id, epoch)

    def claim(self, job_id: str, next_epoch: int) -> None:
        self._passed.claim(job_id, next_epoch)
        self._refused.claim(job_id, next_epoch)

    def begin(self, next_epoch: int) -> None:
        self._passed.begin(next_epoch)
        self._refused.begin(next_epoch)

    def check(self, committables: Sequence[Committable]) -> None:
        self._passed.check([one for one in committables if SPLIT_FROM not in one.payload])
        self._refused.check([one for one in committables if SPLIT_FROM in one.payload])

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        aside = [one for one in committables if SPLIT_FROM in one.payload]
        self._refused.begin(permit.epoch)  # the gate may have been another one for some epochs
        self._refused.commit(permit, [as_plain(one) for one in aside])
        self._passed.commit(permit, [one for one in committables if SPLIT_FROM not in one.payload])
        with suppress(StoreError):  # what is left, the next restore deletes
            for one in aside:
                self._store.delete(one.payload[SPLIT_FROM])

    def prepare_rewind(self, to_epoch: int, generation: int) -> None:
        self._passed.prepare_rewind(to_epoch, generation)
        self._refused.prepare_rewind(to_epoch, generation)

    def rewind(self, permit: CommitPermit, to_epoch: int) -> None:
        self._refused.rewind(permit, to_epoch)
        self._passed.rewind(permit, to_epoch)

    def rewind_epoch(self, at_least: int) -> int:
        return self._passed.rewind_epoch(at_least)

    def pass_over(self, permit: CommitPermit) -> None:
        self._passed.pass_over(permit)
        self._refused.pass_over(permit)

    def abort_unknown(self, permit: CommitPermit | None, attempt: AttemptId) -> None:
        self._passed.abort_unknown(permit, attempt)
        self._refused.abort_unknown(permit, attempt)

    def tidy(self, generation: int, epoch: int, kept_from: int, now_ms: float) -> Tidied:
        one = self._passed.tidy(generation, epoch, kept_from, now_ms)
        other = self._refused.tidy(generation, epoch, kept_from, now_ms)
        return Tidied(
            one.folded + other.folded,
            one.into + other.into,
            one.written_bytes + other.written_bytes,
            one.deleted + other.deleted,
            one.problems + other.problems,
        )


def _moved(committable: Committable, payload: dict[str, Any]) -> Committable:
    return msgspec.structs.replace(committable, payload=payload)
