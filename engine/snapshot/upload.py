"""The asynchronous part of a subtask's snapshot: encode, write, sync; only then there is something to acknowledge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import Committable, StateFile, SubtaskState
from engine.snapshot.paths import JobPaths
from engine.snapshot.statefile import checksum, encode
from engine.snapshot.store import Store
from engine.state.keygroups import KeyGroupRange


class Part(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def table(self) -> Callable[[], pa.Table]: ...

    @property
    def keys(self) -> tuple[str, ...]: ...


class Snapshot(Protocol):
    @property
    def inline(self) -> dict[str, Any]: ...

    @property
    def parts(self) -> Sequence[Part]: ...

    @property
    def pre_commit(self) -> Callable[[], list[Committable]] | None: ...


def upload(
    store: Store,
    paths: JobPaths,
    attempt: AttemptId,
    checkpoint: int,
    subtask: SubtaskId,
    groups: KeyGroupRange,
    max_parallelism: int,
    operators: Mapping[str, Snapshot],
) -> tuple[SubtaskState, list[Committable]]:
    files: list[StateFile] = []
    committables: list[Committable] = []
    for uid, snapshot in operators.items():
        for part in snapshot.parts:
            table = part.table()
            if not table.num_rows:
                continue
            data = encode(table, part.keys, groups, max_parallelism)
            path = paths.state_file(attempt, checkpoint, uid, subtask, part.name)
            store.write(path, data)
            files.append(
                StateFile(uid, part.name, path, len(data), checksum(data), table.num_rows, groups.start, groups.end)
            )
        if snapshot.pre_commit is not None:
            committables += snapshot.pre_commit()
    if files:
        store.sync([file.path for file in files])
    inline = {uid: snapshot.inline for uid, snapshot in operators.items() if snapshot.inline}
    return SubtaskState(subtask, files, inline), committables
