"""Reads the parts of a snapshot that the subtasks of one slot need.

Invariant: the checksum of a file is checked before its content is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from engine.protocol.ids import SubtaskId
from engine.protocol.manifest import Manifest, ManifestRef, StateFile
from engine.protocol.redistribution import Distribution, shares
from engine.protocol.state_proof import StateDigest, SubtaskDigests
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.statefile import decode, decode_plain
from engine.state.key_groups import KeyGroupRange
from engine.state.state_digest import digest_of


@dataclass
class Restored:
    """The restored state of the subtasks of one slot.

    `inline` holds by uid the inline values of all subtasks of the snapshot, in order.
    `tables` holds by subtask and uid the keyed state of its key groups, `operator` its share of operator state.
    """

    inline: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    tables: dict[tuple[SubtaskId, str], list[tuple[str, pa.Table]]] = field(default_factory=dict)
    operator: dict[tuple[SubtaskId, str], list[tuple[str, Distribution, pa.Table]]] = field(default_factory=dict)

    def digests(self) -> list[SubtaskDigests]:
        """Digests what each subtask is given, for the proof of a rescale."""
        found: dict[SubtaskId, list[StateDigest]] = {}
        for (subtask, uid), tables in self.tables.items():
            found.setdefault(subtask, []).extend(digest_of(uid, n, Distribution.KEYED, table) for n, table in tables)
        for (subtask, uid), held in self.operator.items():
            found.setdefault(subtask, []).extend(digest_of(uid, name, how, table) for name, how, table in held)
        return [SubtaskDigests(subtask, states) for subtask, states in found.items()]


@dataclass(frozen=True)
class Wanted:
    """One operator of one subtask to restore. `parallelism` is the operator's parallelism now."""

    subtask: SubtaskId
    uid: str
    groups: KeyGroupRange
    parallelism: int


def restore(log: EpochLog, ref: ManifestRef, wanted: Sequence[Wanted]) -> Restored:
    manifest = log.read_manifest(ref)
    result = Restored()
    parallelism = Counter(state.subtask.vertex for state in manifest.subtasks)
    for state in manifest.subtasks:
        for uid, inline in state.inline.items():
            result.inline.setdefault(uid, []).append(inline)
        for file in state.files:
            readers = [
                want
                for want in wanted
                if want.uid == file.uid and want.groups.start < file.group_end and file.group_start < want.groups.end
            ]
            if not readers:
                continue
            data = log.read_checked(file.path, file.checksum)
            for want in readers:
                table = decode(data, want.groups)
                if table.num_rows:
                    result.tables.setdefault((want.subtask, want.uid), []).append((file.name, table))
    for files in _operator_states(manifest, parallelism):
        _deal_out(log, files, wanted, result)
    return result


def _operator_states(manifest: Manifest, parallelism: Mapping[str, int]) -> Iterable[list[StateFile | None]]:
    """Returns for each operator state the files of all subtasks, in order; None where the state was empty."""
    states: dict[tuple[str, str, Distribution], list[StateFile | None]] = {}
    for state in manifest.subtasks:
        for file in state.files:
            if file.distribution is not Distribution.KEYED:
                of_all: list[StateFile | None] = [None] * parallelism[state.subtask.vertex]
                states.setdefault((file.uid, file.name, file.distribution), of_all)[state.subtask.index] = file
    return states.values()


def _deal_out(log: EpochLog, files: Sequence[StateFile | None], wanted: Sequence[Wanted], result: Restored) -> None:
    some = next(file for file in files if file is not None)
    items = [file.rows if file is not None else 0 for file in files]
    read: dict[str, pa.Table] = {}
    for want in wanted:
        if want.uid != some.uid:
            continue
        parts = []
        of_each = shares(some.distribution, items, want.subtask.index, want.parallelism)
        for file, share in zip(files, of_each, strict=True):
            if file is not None and share:
                if file.path not in read:
                    read[file.path] = decode_plain(log.read_checked(file.path, file.checksum))
                parts.append(read[file.path].slice(share.start, len(share)))
        if parts:
            held = result.operator.setdefault((want.subtask, want.uid), [])
            held.append((some.name, some.distribution, pa.concat_tables(parts)))
