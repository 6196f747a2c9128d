"""Looks up the keyed state of one key in an epoch (queryable state). Reads only the files of the key's group.

What an epoch holds is what the job would go on from, so an answer never shows what a failure could still undo.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from engine.core.errors import WeirError
from engine.core.nearest import nearest
from engine.protocol.manifest import Manifest, ManifestRef, StateFile
from engine.protocol.redistribution import Distribution
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.statefile import decode, decode_plain, key_columns
from engine.state.key_groups import KeyGroupRange, key_groups
from engine.state.key_hash import hash_columns
from engine.state.values import objects_of


class NoSuchState(WeirError):
    """The question names no operator with keyed state, or a key that can't be one of its keys."""


class StateOfKey(msgspec.Struct, frozen=True):
    """The state of one key in an epoch: by name its rows, without the key columns. A state without rows is absent."""

    epoch: int
    uid: str
    key: dict[str, Any]
    states: dict[str, list[dict[str, Any]]]


def look_up(log: EpochLog, ref: ManifestRef, uid: str, key: Sequence[str]) -> StateOfKey:
    """Returns the state of a key, whose values are given as texts in the order of the operator's key columns."""
    manifest = log.read_manifest(ref)
    columns = _key_columns(manifest, uid)
    files = [
        file
        for of in manifest.subtasks
        for file in of.files
        if file.uid == uid and file.distribution is Distribution.KEYED
    ]
    if not files:
        return StateOfKey(manifest.epoch, uid, dict(zip(columns, key, strict=False)), {})
    data = log.read_checked(files[0].path, files[0].checksum)
    schema = decode_plain(data).schema
    held = key_columns(data) or [name for name in columns if name in schema.names]
    columns = columns[: len(held)]  # of two streams: those of the first
    values = _values(uid, columns, [schema.field(name).type for name in held], key)
    (group,) = key_groups(hash_columns(values), manifest.max_parallelism).tolist()
    states: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        if file.group_start <= group < file.group_end:
            states.setdefault(file.name, []).extend(_rows(log, file, group, held, values))
    shown = {name: objects_of(value)[0] for name, value in zip(columns, values, strict=True)}
    return StateOfKey(manifest.epoch, uid, shown, {name: rows for name, rows in states.items() if rows})


def _key_columns(manifest: Manifest, uid: str) -> list[str]:
    keyed = {one.uid: [column.name for column in one.keys] for one in manifest.description.operators if one.keys}
    if uid not in keyed:
        raise NoSuchState(
            f"no operator {uid!r} keeps state by key in epoch {manifest.epoch}{nearest(uid, keyed)}; it has: "
            f"{', '.join(sorted(keyed)) or 'none'}"
        )
    return keyed[uid]


def _values(uid: str, columns: Sequence[str], types: Sequence[pa.DataType], key: Sequence[str]) -> list[pa.Array]:
    if len(key) != len(columns):
        wanted = "1 value" if len(columns) == 1 else f"{len(columns)} values"
        raise NoSuchState(f"the key of {uid!r} is ({', '.join(columns)}): give {wanted}, not {len(key)}")
    values = []
    for name, kind, text in zip(columns, types, key, strict=True):
        try:
            values.append(pa.array([text]).cast(kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise NoSuchState(f"{text!r} is no {kind}, which the key column {name!r} of {uid!r} is: {error}") from error
    return values


def _rows(
    log: EpochLog, file: StateFile, group: int, columns: Sequence[str], values: Sequence[pa.Array]
) -> list[dict[str, Any]]:
    """`columns`: the key columns if the file does not name them. The two sides of a join name theirs differently."""
    data = log.read_checked(file.path, file.checksum)
    columns = key_columns(data) or columns
    table = decode(data, KeyGroupRange(group, group + 1))
    for name, value in zip(columns, values, strict=True):
        table = table.filter(pc.equal(table.column(name), value[0]))
    rest = [name for name in table.column_names if name not in columns]
    held = zip(*(objects_of(table.column(name)) for name in rest), strict=True)
    return [dict(zip(rest, row, strict=True)) for row in held]
