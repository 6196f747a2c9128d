"""Finds the splits of a subtask: in a listing that is made once, or by listing again and again.

Invariant: all subtasks in all attempts assign splits by the same rule, so each split has exactly one owner.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from engine.connectors.files.listing import (
    FileError,
    FileMissing,
    FileSplit,
    FileUnavailable,
    PublishedTable,
    untold,
)
from engine.connectors.files.unfolding import Remembered, begun, inside, must_ask, pruned, restored, unfold
from engine.connectors.table.folds import level_of
from engine.connectors.table.log import file_name
from engine.core.errors import StoreError
from engine.core.sources import Discovery, SourceContext, assigned
from engine.protocol.epoch_records import Created

Stored = TypeVar("Stored")


class Frozen(Discovery):
    """The splits of a bounded source: the first subtask to store its listing (create-if-absent) decides for all.

    Files that appear later are not read. From the first checkpoint on, the snapshot contains all splits, so a fork or a
    rewind keeps them too.
    """

    def __init__(self, context: SourceContext, known: Sequence[str], listed: Callable[[], list[FileSplit]]) -> None:
        self._context = context
        self._list = listed
        self._found: Sequence[str] | None = None
        self._error: BaseException | None = None
        self._ready = False
        if known:
            self._deal([split.id for split in sorted(map(FileSplit.of, known), key=FileSplit.order)])
        else:
            context.offload.submit(context.queue, self._freeze, self._frozen)

    def poll(self) -> Sequence[str]:
        if self._error is not None:
            raise self._error
        if self._found is None:
            return ()
        found, self._found = self._found, ()
        self._ready = True
        return found

    @property
    def ready(self) -> bool:
        return self._ready

    @property
    def finished(self) -> bool:
        return self._ready

    def _deal(self, ids: Sequence[str]) -> None:
        self._found = assigned(ids, self._context.subtask, self._context.parallelism)

    def _frozen(self, ids: list[str] | None, error: BaseException | None) -> None:
        self._error = error
        if ids is not None:
            self._deal(ids)

    def _freeze(self) -> list[str]:
        """Returns the stored listing, or lists and stores it. Runs off the task thread."""
        path = self._context.paths.source_listing(self._context.uid)
        return _same_for_all(self._context, path, lambda: [split.id for split in self._list()], list[str])


def _same_for_all(context: SourceContext, path: str, make: Callable[[], Stored], kind: type[Stored]) -> Stored:
    """Returns what is stored there, or makes and stores it. Runs off the task thread."""
    try:
        data = context.store.read(path)
    except FileNotFoundError:
        data = msgspec.json.encode(make())
        if context.store.create(path, data) is not Created.CREATED:
            data = _read_back(context, path)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileError(
            f"{path} ({len(data)} bytes) is no listing of files any more. No epoch depends on it yet: delete it "
            "and start the job again"
        ) from error


def _read_back(context: SourceContext, path: str) -> bytes:
    """Reads the listing that another subtask stored first, or whose creation had an unknown outcome."""
    try:
        return context.store.read(path)
    except FileNotFoundError as error:
        raise StoreError(f"the store did not say whether {path} was created") from error


class FirstLook(msgspec.Struct, frozen=True):
    """What a table showed at the first look of a job. `inside`: the files that its folded files replace."""

    files: list[str]
    inside: list[str]


@dataclass(frozen=True)
class Look:
    """What a look has found. `remembered`: what to know about a table from then on; None if there is no table."""

    files: list[FileSplit]
    remembered: Remembered | None = None


class Watched(Discovery):
    """The splits of an unbounded source. The hash of a file's path gives its subtask, without coordination.

    Of a Weir table all subtasks take the same first look, and each unfolds what it sees later (`unfolding.py`).
    """

    def __init__(
        self,
        context: SourceContext,
        known: Sequence[str],
        look: Callable[[], PublishedTable | list[FileSplit]],
        interval_ms: int,
    ) -> None:
        self._context = context
        self._see = look
        self._interval_ms = interval_ms
        self._next_ms = context.clock.now_ms()
        self._looking = False
        self._ready = False
        self._error: BaseException | None = None
        self._paths: set[str] = set()
        self._found: list[str] = []
        files = [FileSplit.of(split) for split in known]
        self._take(self._new(files))
        before = restored((file.path for file in files), context.discovered) if context.restored else None
        self._remembered = before
        self._handed_out = before  # what was known of the table when splits were last handed out
        self._is_table = any(state is not None for state in context.discovered)

    def poll(self) -> Sequence[str]:
        if self._error is not None:
            raise self._error
        now = self._context.clock.now_ms()
        if not self._looking and now >= self._next_ms:
            self._looking = True
            self._next_ms = now + self._interval_ms
            self._context.offload.submit(self._context.queue, self._look, self._looked)
        if self._handed_out is not self._remembered:
            self._handed_out = self._remembered
            self._ready = True
        found, self._found = self._found, []
        return found

    @property
    def ready(self) -> bool:
        return self._ready

    @property
    def finished(self) -> bool:
        return False

    @property
    def wakeup_ms(self) -> float | None:
        return None if self._looking else self._next_ms

    @property
    def state(self) -> list[str] | None:
        """The settled files of a table."""
        if not self._is_table or self._handed_out is None:
            return None
        return sorted(self._handed_out.settled)

    # --- off the task thread; the fields do not change meanwhile ---

    def _look(self) -> Look:
        there = self._see()
        if isinstance(there, PublishedTable):
            return self._first_look(there) if self._remembered is None else self._next_look(there, self._remembered)
        if self._is_table:
            raise FileUnavailable(
                "the log of the watched table (_spark_metadata) is away, and only it tells which files are published: "
                "put it back"
            )
        return Look(there)

    def _first_look(self, table: PublishedTable) -> Look:
        """Takes the look that the first subtask of this attempt has stored. An attempt without epoch begins anew."""
        context = self._context

        def taken() -> FirstLook:
            return FirstLook([file.id for file in table.files()], sorted(inside(table.names, table.folds())))

        first = _same_for_all(context, context.paths.first_look(context.uid, context.attempt), taken, FirstLook)
        for path in context.store.list(context.paths.inputs()[0]):
            attempt = context.paths.parse_first_look(context.uid, path)
            if attempt is not None and attempt < context.attempt:
                context.store.delete(path)
        files = [FileSplit.of(file) for file in first.files]
        return Look(files, begun((file.path for file in files), first.inside))

    def _next_look(self, table: PublishedTable, remembered: Remembered) -> Look:
        folds = table.folds() if must_ask(table.names, remembered) else None
        found = unfold(table.names, folds or {}, self._paths, remembered, self._owns)
        if found.unknown is not None:
            raise untold(table.folder / found.unknown)
        known = found.remembered if folds is None else pruned(found.remembered, table.names, folds)
        return Look([table.file(name) for name in found.read], known)

    # --- on the task thread ---

    def _looked(self, look: Look | None, error: BaseException | None) -> None:
        self._looking = False
        seen = self._ready or self._context.restored
        if isinstance(error, FileMissing) and seen:
            error = FileUnavailable(f"{error}. It was there before, so Weir tries again")
        self._error = error
        if look is None:
            return
        new = self._new(sorted(look.files, key=lambda file: (file.mtime_ns, file.path)))
        if look.remembered is not None:
            self._is_table = True
            self._remembered = look.remembered  # it counts, and the subtask is ready, when the splits are handed out
        else:
            folded = next((file for file in new if level_of(file_name(file.path))), None)
            if seen and folded is not None:
                self._error = FileError(
                    f"{folded.path} is a folded file of a Weir table, and holds rows that this job has read, or will "
                    "read, under other names: watch the folder of the table itself, or write the table with "
                    "TableSink(…, fold_mb=None)"
                )
                return
            self._ready = True
        self._take(new)

    def _new(self, files: Sequence[FileSplit]) -> list[FileSplit]:
        """Returns the files that are new and belong to this subtask."""
        new = {file.path: file for file in reversed(files) if file.path not in self._paths}
        mine = [path for path in new if self._owns(path)]
        return [new[path] for path in reversed(mine)]

    def _owns(self, path: str) -> bool:
        return owner(path, self._context.parallelism) == self._context.subtask

    def _take(self, files: Sequence[FileSplit]) -> None:
        self._paths |= {file.path for file in files}
        self._found += [file.id for file in files]


def owner(path: str, parallelism: int) -> int:
    """Returns the subtask that reads a watched file. Snapshots depend on it: never change it."""
    return zlib.crc32(path.encode()) % parallelism
