"""Says what becomes of all that a snapshot holds if a changed job goes on from it: the dry run of an upgrade (D8).

Every source, operator and sink of the snapshot or of the job has at least one row. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

import msgspec

from engine.core.sinks import Found
from engine.graph.compatibility import ALLOW, Change, Described, Difference, changes
from engine.graph.description import describe
from engine.graph.job_graph import JobGraph
from engine.protocol.job_description import JobDescription, SinkDescription, SourceDescription
from engine.protocol.manifest import Manifest, StateFile


class Fate(Enum):
    """What becomes of a source, an operator or a sink."""

    RESTORED = "restored"
    NEW = "new"
    MIGRATED = "migrated"
    DROPPED = "dropped"
    REFUSED = "refused"


class Planned(msgspec.Struct, frozen=True):
    """One row of the plan. `what` says what happens and why, `fix` what to do if it is refused."""

    uid: str
    kind: str
    fate: Fate
    what: str
    fix: str = ""


class UpgradePlan(msgspec.Struct, frozen=True):
    """The plan of an upgrade of `job` from this epoch."""

    job: str
    epoch: int
    rows: list[Planned]

    @property
    def refused(self) -> list[Planned]:
        return [row for row in self.rows if row.fate is Fate.REFUSED]

    def count(self, fate: Fate) -> int:
        return sum(row.fate is fate for row in self.rows)


def plan_upgrade(
    graph: JobGraph, manifest: Manifest, targets: Mapping[str, Found], allow_non_restored_state: bool
) -> UpgradePlan:
    """Plans the upgrade from this snapshot to this job. `targets` says by uid what is in the targets of sinks."""
    before = manifest.description
    now = describe(graph, before, manifest.epoch + 1)
    found: dict[str, list[Change]] = {}
    for change in changes(graph, manifest, targets):
        found.setdefault(change.uid, []).append(change)
    known = {one.uid: one for one in (*_everything(before), *_everything(now))}
    rows = [_changed("job", change, allow_non_restored_state) for change in found.get("(job)", [])]
    for uid, one in known.items():
        if uid in found:
            rows += [_changed(_kind(one), change, allow_non_restored_state) for change in found[uid]]
        else:
            rows.append(_unchanged(one, before, now, _held(manifest)))
    return UpgradePlan(graph.name, manifest.epoch, sorted(rows, key=lambda row: _ORDER[row.fate]))


_ORDER = {
    fate: place for place, fate in enumerate((Fate.REFUSED, Fate.DROPPED, Fate.MIGRATED, Fate.NEW, Fate.RESTORED))
}


def _changed(kind: str, change: Change, allow: bool) -> Planned:
    if not isinstance(change, Difference):
        return Planned(change.uid, kind, Fate.MIGRATED, change.what)
    if change.droppable and allow:
        return Planned(change.uid, kind, Fate.DROPPED, f"{change.what}; {ALLOW} allows it")
    return Planned(change.uid, kind, Fate.REFUSED, change.what, change.fix)


def _unchanged(
    one: Described, before: JobDescription, now: JobDescription, held: Mapping[str, Sequence[StateFile]]
) -> Planned:
    was, kind = {of.uid for of in _everything(before)}, _kind(one)
    if one.uid not in {of.uid for of in _everything(now)}:
        return Planned(one.uid, kind, Fate.DROPPED, "it is gone, and nothing of it is in the snapshot")
    if one.uid not in was:
        return Planned(one.uid, kind, Fate.NEW, _new(one))
    return Planned(one.uid, kind, Fate.RESTORED, _restored(one, held.get(one.uid, [])))


def _new(one: Described) -> str:
    if isinstance(one, SourceDescription):
        return "it reads from its beginning"
    if isinstance(one, SinkDescription):
        return f"{one.target or 'its output'} begins with epoch {one.first_epoch}"
    return "it starts empty"


def _restored(one: Described, files: Sequence[StateFile]) -> str:
    if isinstance(one, SourceDescription):
        return "it goes on at its positions"
    if isinstance(one, SinkDescription):
        return f"it goes on with {one.target}" if one.target else "it keeps nothing"
    if not files:
        return "it has no state in files"
    names = {file.name: [part for part in files if part.name == file.name] for file in files}
    return ", ".join(f"{name}: {_size(parts)}" for name, parts in names.items()) + _opened(one)


def _opened(one: Described) -> str:
    """Says what a dry run can't know: the type of a state that a function asks for when it is opened."""
    described = bool(getattr(one, "state", {}))
    return "" if described else "; its type is compared when the function asks for it in open()"


def _size(files: Sequence[StateFile]) -> str:
    rows, size = sum(file.rows for file in files), sum(file.size for file in files)
    return f"{rows:,} {'row' if rows == 1 else 'rows'}, {size / 1000:,.1f} kB"


def _held(manifest: Manifest) -> dict[str, list[StateFile]]:
    held: dict[str, list[StateFile]] = {}
    for subtask in manifest.subtasks:
        for file in subtask.files:
            held.setdefault(file.uid, []).append(file)
    return held


def _kind(one: Described) -> str:
    if isinstance(one, SourceDescription):
        return "source"
    return "sink" if isinstance(one, SinkDescription) else one.kind


def _everything(job: JobDescription) -> Iterator[Described]:
    yield from job.sources
    yield from job.operators
    yield from job.sinks
