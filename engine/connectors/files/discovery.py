"""Finds the splits of a subtask: in a listing that is made once, or by listing again and again.

Invariant: all subtasks in all attempts assign splits by the same rule, so each split has exactly one owner.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import msgspec

from engine.connectors.files.listing import FileError, FileMissing, FileSplit, FileUnavailable
from engine.connectors.table.folds import level_of
from engine.connectors.table.log import file_name
from engine.core.errors import StoreError
from engine.core.sources import Discovery, SourceContext, assigned
from engine.protocol.epoch_records import Created


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
        store, path = self._context.store, self._context.paths.source_listing(self._context.uid)
        try:
            data = store.read(path)
        except FileNotFoundError:
            data = msgspec.json.encode([split.id for split in self._list()])
            if store.create(path, data) is not Created.CREATED:
                data = _read_back(self._context, path)
        try:
            return msgspec.json.decode(data, type=list[str])
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


class Watched(Discovery):
    """The splits of an unbounded source. The hash of a file's path gives its subtask, without coordination."""

    def __init__(
        self, context: SourceContext, known: Sequence[str], listed: Callable[[], list[FileSplit]], interval_ms: int
    ) -> None:
        self._context = context
        self._list = listed
        self._interval_ms = interval_ms
        self._next_ms = context.clock.now_ms()
        self._looking = False
        self._ready = False
        self._error: BaseException | None = None
        self._paths: set[str] = set()
        self._found: list[str] = []
        self._take(self._new([FileSplit.of(split) for split in known]))

    def poll(self) -> Sequence[str]:
        if self._error is not None:
            raise self._error
        now = self._context.clock.now_ms()
        if not self._looking and now >= self._next_ms:
            self._looking = True
            self._next_ms = now + self._interval_ms
            self._context.offload.submit(self._context.queue, self._list, self._looked)
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

    def _looked(self, files: list[FileSplit] | None, error: BaseException | None) -> None:
        self._looking = False
        seen = self._ready or self._context.restored
        if isinstance(error, FileMissing) and seen:
            error = FileUnavailable(f"{error}. It was there before, so Weir tries again")
        self._error = error
        if files is not None:
            new = self._new(sorted(files, key=lambda file: (file.mtime_ns, file.path)))
            folded = next((file for file in new if level_of(file_name(file.path))), None)
            if seen and folded is not None:
                self._error = FileError(
                    f"the table folds its small files, and {folded.path} holds rows that this job has read, or will "
                    "read, under other names: write the table with TableSink(…, fold_mb=None), or read it without "
                    "watch=…"
                )
                return
            self._ready = True
            self._take(new)

    def _new(self, files: Sequence[FileSplit]) -> list[FileSplit]:
        """Returns the files that are new and belong to this subtask."""
        new = {file.path: file for file in reversed(files) if file.path not in self._paths}
        mine = [path for path in new if owner(path, self._context.parallelism) == self._context.subtask]
        return [new[path] for path in reversed(mine)]

    def _take(self, files: Sequence[FileSplit]) -> None:
        self._paths |= {file.path for file in files}
        self._found += [file.id for file in files]


def owner(path: str, parallelism: int) -> int:
    """Returns the subtask that reads a watched file. Snapshots depend on it: never change it."""
    return zlib.crc32(path.encode()) % parallelism
