"""Decides whether a job may go on from a snapshot that an earlier version of it has taken (D8). Pure.

State, positions and output are found by uid. What nobody claims any more would be lost, so the job is refused, unless
the user allows it to be dropped. What is still claimed must be readable: as it was saved, or adapted by the rules of
`engine/core/evolution.py`; no option changes that. A table takes only columns with which its readers read all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from engine.core.errors import IncompatibleJob
from engine.core.evolution import Unfit, adaptations
from engine.core.sinks import Found
from engine.graph.description import describe
from engine.graph.job_graph import JobGraph
from engine.graph.state_types import read_state_type
from engine.protocol.job_description import (
    Column,
    JobDescription,
    OperatorDescription,
    SinkDescription,
    SourceDescription,
)
from engine.protocol.manifest import Manifest

ALLOW = "--allow-non-restored-state"
AGGREGATES = "aggregates"
"""The name under which a window operator describes its partial aggregates."""
BY_RECORD = "aggregates by record"
"""The same, of windows that add record by record: because of their trigger, if they could do without."""
EVICTED = "records and times"
"""The name under which a window operator with an evictor describes what it keeps."""

Described: TypeAlias = OperatorDescription | SourceDescription | SinkDescription
T = TypeVar("T", OperatorDescription, SourceDescription, SinkDescription)


@dataclass(frozen=True)
class Difference:
    """One change that loses or breaks something. `droppable`: the user may allow it, and its state is then dropped."""

    uid: str
    what: str
    fix: str
    droppable: bool = False


@dataclass(frozen=True)
class Migration:
    """One change that is made good when the state is restored, or that readers of a table do not mind."""

    uid: str
    what: str


Change: TypeAlias = Difference | Migration


def check(
    graph: JobGraph, manifest: Manifest, targets: Mapping[str, Found], allow_non_restored_state: bool
) -> list[Difference]:
    """Returns what will be dropped because the user allows it. Raises IncompatibleJob if the job can't go on.

    `targets` says by uid what is in the targets of the job's sinks, and of those that are gone.
    """
    found = differences(graph, manifest, targets)
    refused = [one for one in found if not (one.droppable and allow_non_restored_state)]
    if refused:
        raise IncompatibleJob(
            f"job {graph.name!r} can't go on from epoch {manifest.epoch}",
            [(one.uid, one.what, one.fix) for one in refused],
        )
    return found


def differences(graph: JobGraph, manifest: Manifest, targets: Mapping[str, Found]) -> list[Difference]:
    """Returns every change since the snapshot that loses state, positions or output, or makes them unreadable."""
    return [one for one in changes(graph, manifest, targets) if isinstance(one, Difference)]


def changes(graph: JobGraph, manifest: Manifest, targets: Mapping[str, Found]) -> list[Change]:
    """Returns every change since the snapshot that matters to state, positions or output."""
    before = manifest.description
    now = describe(graph, before, manifest.epoch + 1)
    held = {uid for state in manifest.subtasks for uid in (*state.inline, *(file.uid for file in state.files))}
    pending = {committable.uid for committable in manifest.commits}
    operators = [one for one in before.operators if one.uid in held and not _moved_into_source(one, now)]
    return [
        *_another_job(before, now, manifest.epoch),
        *_key_groups(graph, manifest),
        *_compared(before.sources, now.sources, now, _gone_source, _changed_source),
        *_compared(operators, now.operators, now, _gone_operator, _changed_operator),
        *_compared(
            [sink for sink in before.sinks if sink.target or sink.uid in pending],
            now.sinks,
            now,
            partial(_gone_sink, targets),
            partial(_changed_sink, targets),
        ),
        *_lost_tables(before, now, targets, manifest.epoch + 1),
        *_returned_sinks(before, now, targets),
    ]


def gone_sinks(graph: JobGraph, manifest: Manifest) -> list[SinkDescription]:
    """Returns the sinks of the snapshot that the job no longer has."""
    now = {uid for uid, _ in graph.sinks}
    return [sink for sink in manifest.description.sinks if sink.uid not in now]


def new_sinks(graph: JobGraph, manifest: Manifest | None) -> list[str]:
    """Returns the sinks that come into the job with the epoch after this snapshot."""
    known = {sink.uid for sink in manifest.description.sinks} if manifest is not None else set()
    return [uid for uid, _ in graph.sinks if uid not in known]


def _compared(
    before: Sequence[T],
    now: Sequence[T],
    job: JobDescription,
    gone: Callable[[T, T | None], Difference],
    changed: Callable[[T, T], Iterator[Change]],
) -> Iterator[Change]:
    """Compares what has the same uid. Guesses of what is gone and what is new which belong together."""
    known = {one.uid for one in before}
    by_uid = {one.uid: one for one in now}
    new = [one for one in now if one.uid not in known]
    kinds = {one.uid: one.kind for one in _everything(job)}
    for one in before:
        same = by_uid.get(one.uid)
        if same is not None:
            yield from changed(one, same)
        elif one.uid in kinds:
            yield _other_kind(one, kinds[one.uid])
        else:
            renamed = next((other for other in new if _anonymous(other) == _anonymous(one)), None)
            if renamed is not None:
                new.remove(renamed)
            yield gone(one, renamed)


def _everything(job: JobDescription) -> list[Described]:
    return [*job.sources, *job.operators, *job.sinks]


def _anonymous(one: Described) -> Described:
    named = msgspec.structs.replace(one, uid="")
    return msgspec.structs.replace(named, first_epoch=0) if isinstance(named, SinkDescription) else named


def _another_job(before: JobDescription, now: JobDescription, epoch: int) -> Iterator[Difference]:
    """Says first that nothing is left of the job that took the snapshot, if that is so."""
    were, are = ({one.uid for one in _everything(of)} for of in (before, now))
    if were and not were & are:
        yield Difference(
            "(job)",
            f"it has no operator in common with the job of this name that took epoch {epoch}",
            f"choose another --name if this is another job; or {ALLOW} puts it in the place of the old one",
            droppable=True,
        )


def _key_groups(graph: JobGraph, manifest: Manifest) -> Iterator[Difference]:
    was, now = manifest.max_parallelism, graph.max_parallelism
    if was != now:
        yield Difference(
            "(job)",
            f"max_parallelism was {was}, is {now}; state can't be moved to other key groups",
            f"write env.max_parallelism = {was} again",
        )


def _other_kind(one: Described, kind: str) -> Difference:
    return Difference(one.uid, f"was a {one.kind}, is a {kind}", "give what is new a uid of its own")


# --- operators ---


def _gone_operator(one: OperatorDescription, renamed: OperatorDescription | None) -> Difference:
    what = f"the {one.kind} is gone, and its state would be lost"
    if renamed is not None:
        return Difference(
            one.uid,
            f"{what}; {renamed.uid} is new and keeps the same state",
            f'write uid="{one.uid}" again instead of "{renamed.uid}"; or {ALLOW} drops the state of {one.uid}, and '
            f"{renamed.uid} starts empty",
            droppable=True,
        )
    return Difference(one.uid, what, f"put it back; or {ALLOW} drops its state", droppable=True)


def _changed_operator(was: OperatorDescription, now: OperatorDescription) -> Iterator[Change]:
    anew = f"or give it a uid of its own and start with {ALLOW}: it then starts empty"
    if was.kind != now.kind:
        yield _other_kind(was, now.kind)
        return
    if was.keys != now.keys:
        yield Difference(
            was.uid, f"was {_keyed(was.keys)}, is {_keyed(now.keys)}", f"make it {_keyed(was.keys)} again, {anew}"
        )
    if (what := _other_firing(was.state, now.state)) is not None:
        yield Difference(was.uid, what, f"set it back, {anew}")
        return
    for name, saved in was.state.items():
        asked = now.state.get(name)
        if asked is None:
            yield Difference(was.uid, f"no longer has the {name} ({saved})", f"put it back, {anew}")
        elif asked != saved:
            yield from _changed_state(was.uid, name, saved, asked, anew)


def _other_firing(was: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """Says that a trigger or an evictor has come or gone, with which the same windows keep something else."""
    kept = [next((name for name in (AGGREGATES, BY_RECORD, EVICTED) if name in state), None) for state in (was, now)]
    if None in kept or kept[0] == kept[1] or was.get("windows") != now.get("windows"):
        return None
    if EVICTED in kept:
        return "evictor: was one, is none" if EVICTED in was else "evictor: was none, is one"
    return f"trigger: was {was.get('trigger', 'none')}, is {now.get('trigger', 'none')}"


def _changed_state(uid: str, name: str, saved: str, asked: str, anew: str) -> Iterator[Change]:
    was, now = read_state_type(saved), read_state_type(asked)
    why = ""
    try:
        if was is not None and now is not None:
            if name in (AGGREGATES, BY_RECORD):
                yield from _changed_aggregates(uid, was, now)
            else:
                yield from [Migration(uid, f"{name}: {what}") for what in adaptations(was, now)]
            return
    except Unfit as error:
        why = f" ({error})" if was is not None and was.num_fields > 1 else ""
    yield Difference(uid, f"{name}: was {saved}, is {asked}{why}", f"set it back, {anew}")


def _changed_aggregates(uid: str, was: pa.StructType, now: pa.StructType) -> Iterator[Migration]:
    """Windows that are open keep what they have, and get a new aggregate for later records only.

    Raises Unfit if a mean would be made of the sum of all records and the number of some, or the other way round.
    """
    before, after = ({kind.field(place).name for place in range(kind.num_fields)} for kind in (was, now))
    for name in sorted(after - before):
        kernel, _, column = name.partition("(")
        if (partner := f"{_PARTNERS.get(kernel)}({column}") in before & after:
            raise Unfit(f"{name} is new and {partner} is not, so the mean of open windows would be wrong")
    for what in adaptations(was, now):
        added = what.partition(" is new, ")
        yield Migration(uid, f"{AGGREGATES}: {added[0]}{_LATER if added[1] else ''}")


_PARTNERS = {"sum": "count", "count": "sum"}
_LATER = " is new; windows that are open now get it for later records only"


def _moved_into_source(one: OperatorDescription, now: JobDescription) -> bool:
    """Says whether the source now makes the watermarks that an operator behind it made, from the same column.

    Older versions added that operator if the source had other consumers. Its state is one watermark, which the source
    finds again: what lies behind keeps its own, so no window fires twice.
    """
    return any(
        one.uid == f"{source.uid}.timestamps" and one.state.get("event time") == f"column {source.event_time}"
        for source in now.sources
    )


def _keyed(keys: Sequence[Column]) -> str:
    return f"keyed by {_listed(keys)}" if keys else "not keyed"


def _listed(columns: Iterable[Column]) -> str:
    return ", ".join(map(str, columns))


# --- sources ---


def _gone_source(one: SourceDescription, renamed: SourceDescription | None) -> Difference:
    what = "the source is gone, and its positions would be lost"
    if renamed is not None:
        return Difference(
            one.uid,
            f"{what}; {renamed.uid} is new and would read everything again",
            f'write uid="{one.uid}" again instead of "{renamed.uid}"; or {ALLOW} drops the positions of {one.uid}',
            droppable=True,
        )
    return Difference(one.uid, what, f"put it back; or {ALLOW} drops its positions", droppable=True)


def _changed_source(was: SourceDescription, now: SourceDescription) -> Iterator[Difference]:
    anew = f"or give it a uid of its own and start with {ALLOW}: it then reads everything"
    if was.kind != now.kind:
        yield Difference(
            was.uid, f"was a {was.kind}, is a {now.kind}, which can't use its positions", f"change it back, {anew}"
        )
    elif was.positions != now.positions:
        yield Difference(
            was.uid, f"its positions belong to {was.positions}, it has {now.positions}", f"change it back, {anew}"
        )
    if was.event_time and now.event_time and was.event_time != now.event_time:
        yield Difference(
            was.uid,
            f"its event time was the column {was.event_time}, is {now.event_time}; its watermark and the windows "
            "behind it are in the old one",
            f'write with_timestamps("{was.event_time}") again; or give the source and what keeps state behind it uids '
            f"of their own and start with {ALLOW}: everything is read again",
        )


# --- sinks ---


def _gone_sink(targets: Mapping[str, Found], one: SinkDescription, renamed: SinkDescription | None) -> Difference:
    what = f"the sink of {one.target or 'its output'} is gone"
    if _is_lost(one, targets):
        return Difference(
            one.uid,
            f"{what}, and so is the table: its folder was deleted or moved away",
            f"put both back; or {ALLOW} forgets the table",
            droppable=True,
        )
    if not one.table:
        return Difference(
            one.uid,
            f"{what}, and the output of the newest epoch may not be committed",
            "put it back: without it nobody can commit that output",
        )
    if renamed is not None:
        return Difference(
            one.uid,
            f"{what}; {renamed.uid} is new and writes the same table",
            f'write uid="{one.uid}" again instead of "{renamed.uid}"; or {ALLOW} lets {renamed.uid} go on with it',
            droppable=True,
        )
    return Difference(
        one.uid, what, f"put it back; or {ALLOW} ends the table with the newest epoch, which is kept", droppable=True
    )


def _changed_sink(targets: Mapping[str, Found], was: SinkDescription, now: SinkDescription) -> Iterator[Change]:
    if was.target != now.target or was.kind != now.kind:
        yield Difference(
            was.uid,
            f"wrote {was.target or was.kind}, is to write {now.target or now.kind}",
            f"write {was.target or was.kind} again; or give the sink of {now.target or now.kind} a uid of its own and "
            f"start with {ALLOW}",
        )
        return
    found = targets[now.uid].columns if now.uid in targets else ()
    yield from _changed_columns(now, was.columns, found)


def _is_lost(sink: SinkDescription, targets: Mapping[str, Found]) -> bool:
    return bool(sink.table) and sink.uid in targets and not targets[sink.uid].claimed


def _lost_tables(
    before: JobDescription, now: JobDescription, targets: Mapping[str, Found], next_epoch: int
) -> Iterator[Difference]:
    """Names the tables that the job still writes, and that are not there any more."""
    tables = {sink.uid: sink.table for sink in now.sinks}
    for sink in before.sinks:
        if _is_lost(sink, targets) and tables.get(sink.uid) == sink.table:
            yield Difference(
                sink.uid,
                f"{sink.target} is gone: its folder was deleted or moved away",
                f"put the folder back; or {ALLOW} begins it anew with epoch {next_epoch}",
                droppable=True,
            )


def _returned_sinks(before: JobDescription, now: JobDescription, targets: Mapping[str, Found]) -> Iterator[Change]:
    """Compares the sinks that are new to the snapshot with what is in their targets, whoever wrote that.

    Output that is published and not committed yet is not in the target; then the sink that made it tells its columns.
    """
    known = {sink.uid for sink in before.sinks}
    written = {sink.target: sink.columns for sink in before.sinks if sink.target}
    for sink in now.sinks:
        columns = targets[sink.uid].columns if sink.uid in targets else ()
        if sink.uid not in known and (held := columns or written.get(sink.target, ())):
            yield from _changed_columns(sink, held, columns)


def _changed_columns(now: SinkDescription, was: Iterable[Column], published: Iterable[Column]) -> Iterator[Change]:
    """Compares the columns of a sink with those of the newest version, and with all that were ever published.

    Spark takes the columns of a table from the file that is the first by name, and reads a column that a file lacks as
    null. So a Weir table may get columns, like a table of Delta or Iceberg. It may not lose any: a reader that asks for
    one would fail as soon as the older files are folded. Types may not change: Spark reads no mixture. Of other targets
    nothing is known.
    """
    anew = f"or write to another table, by a sink with a uid of its own, and start with {ALLOW}"
    saved, asked = ({column.name: column.type for column in of} for of in (was, now.columns))
    ever = {**{column.name: column.type for column in published}, **saved}
    uid, target = now.uid, now.target
    for name, kind in asked.items():
        if name in ever and ever[name] != kind:
            yield Difference(
                uid,
                f"the column {name} of {target} was {ever[name]}, is {kind}; its readers would fail",
                f"cast it to {ever[name]}, {anew}",
            )
        elif name not in saved and now.gains_columns:
            yield Migration(uid, f"the column {name} {kind} is new in {target}, and null in older rows")
        elif name not in saved:
            yield Difference(uid, f"{target} has the new column {name} {kind}", f"leave it out, {anew}")
    for name, kind in ever.items():
        if name not in asked:
            null = "write null in it, " if now.gains_columns else ""
            yield Difference(uid, f"{target} no longer has the column {name} {kind}", f"put it back, {null}{anew}")
