"""Reads from a snapshot what the subtasks of one slot need. Every byte is checked before it is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from engine.protocol.ids import SubtaskId
from engine.protocol.manifest import ManifestRef
from engine.snapshot.log import EpochLog, read_checked
from engine.snapshot.statefile import decode
from engine.state.keygroups import KeyGroupRange, range_of


@dataclass
class Restored:
    """Per operator uid the inline parts of all its subtasks; per subtask and uid the tables of its key groups."""

    inline: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    groups: dict[str, list[KeyGroupRange]] = field(default_factory=dict)  # of the subtasks that wrote `inline`
    tables: dict[tuple[SubtaskId, str], list[tuple[str, pa.Table]]] = field(default_factory=dict)

    def inline_of(self, uid: str, groups: KeyGroupRange) -> list[dict[str, Any]]:
        """Only from subtasks whose key groups meet these."""
        written = zip(self.inline.get(uid, []), self.groups.get(uid, []), strict=True)
        return [inline for inline, of in written if of.intersects(groups)]


@dataclass(frozen=True)
class Wanted:
    """One operator of one subtask to restore."""

    subtask: SubtaskId
    uid: str
    groups: KeyGroupRange


def restore(log: EpochLog, ref: ManifestRef, wanted: Sequence[Wanted]) -> Restored:
    manifest = log.read_manifest(ref)
    result = Restored()
    parallelism = Counter(state.subtask.vertex for state in manifest.subtasks)
    for state in manifest.subtasks:
        groups = range_of(state.subtask.index, parallelism[state.subtask.vertex], manifest.max_parallelism)
        for uid, inline in state.inline.items():
            result.inline.setdefault(uid, []).append(inline)
            result.groups.setdefault(uid, []).append(groups)
        for file in state.files:
            readers = [
                want
                for want in wanted
                if want.uid == file.uid and want.groups.start < file.group_end and file.group_start < want.groups.end
            ]
            if not readers:
                continue
            data = read_checked(log.store, file.path, file.checksum)
            for want in readers:
                table = decode(data, want.groups)
                if table.num_rows:
                    result.tables.setdefault((want.subtask, want.uid), []).append((file.name, table))
    return result
