"""The asynchronous part of a subtask's snapshot: encodes, writes and syncs its state.

Invariant: a snapshot is acknowledged only after all its files are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import Committable, StateFile, SubtaskState
from engine.protocol.redistribution import Distribution
from engine.protocol.state_proof import StateDigest
from engine.snapshot.statefile import checksum, encode, encode_plain
from engine.state.key_groups import KeyGroupRange
from engine.state.state_digest import digest_of
from engine.store.failpoints import Point, failpoint


class Part(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def table(self) -> Callable[[], pa.Table]: ...

    @property
    def keys(self) -> tuple[str, ...]: ...

    @property
    def distribution(self) -> Distribution: ...


class Snapshot(Protocol):
    @property
    def inline(self) -> dict[str, Any]: ...

    @property
    def parts(self) -> Sequence[Part]: ...

    @property
    def pre_commit(self) -> Callable[[], list[Committable]] | None: ...


@dataclass(frozen=True)
class Uploaded:
    """The durable state and committables, the time that each operator's part took, and when all was done.

    `digests` are those of the state, if they were asked for.
    """

    state: SubtaskState
    committables: list[Committable]
    spent_ms: dict[str, float]
    done_ms: float
    digests: list[StateDigest]


@failpoint(before=Point.BEFORE_STATE, after=Point.BEFORE_ACK)
def upload(
    store: Store,
    paths: JobPaths,
    attempt: AttemptId,
    checkpoint: int,
    subtask: SubtaskId,
    groups: KeyGroupRange,
    max_parallelism: int,
    operators: Mapping[str, Snapshot],
    now_ms: Callable[[], float],
    digesting: bool = False,
    into: str = "",
) -> Uploaded:
    """`into`: the folder of the files; empty: that of the checkpoint."""
    files: list[StateFile] = []
    committables: list[Committable] = []
    spent_ms: dict[str, float] = {}
    digests: list[StateDigest] = []
    for uid, snapshot in operators.items():
        before = now_ms()
        for part in snapshot.parts:
            table = part.table()
            if not table.num_rows:
                continue
            if digesting:
                digests.append(digest_of(uid, part.name, part.distribution, table))
            keyed = part.distribution is Distribution.KEYED
            data = encode(table, part.keys, groups, max_parallelism) if keyed else encode_plain(table)
            path = paths.state_file(attempt, checkpoint, uid, subtask, part.name, part.distribution, into)
            store.write(path, data)
            start, end = (groups.start, groups.end) if keyed else (0, 0)
            size, rows = len(data), table.num_rows
            files.append(StateFile(uid, part.name, path, size, checksum(data), rows, start, end, part.distribution))
        if snapshot.pre_commit is not None:
            committables += snapshot.pre_commit()
        spent_ms[uid] = now_ms() - before
    if files:
        store.sync([file.path for file in files])
    inline = {uid: snapshot.inline for uid, snapshot in operators.items() if snapshot.inline}
    return Uploaded(SubtaskState(subtask, files, inline), committables, spent_ms, now_ms(), digests)
