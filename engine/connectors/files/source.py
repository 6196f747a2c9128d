"""`FileSource`: the base of the Parquet, CSV and JSON sources. A subclass splits and reads one format."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.connectors.files.discovery import Frozen, Watched
from engine.connectors.files.listing import FileError, FileSplit, Location
from engine.connectors.files.readahead import Chunk, ChunkReader, Position, ReadAhead
from engine.core.durations import Duration, to_ms
from engine.core.sources import Discovery, Source, SourceContext, SplitReader


class FileSource(Source):
    """Reads `path`: a file, a folder, a glob or a Weir table. `watch`: how often to look for new files, without end."""

    open_splits = 2  # one is read while the other is handed out

    def __init__(self, path: str, watch: Duration | None) -> None:
        self.location = Location(path)
        self.watch_ms = None if watch is None else to_ms(watch, "watch")
        if self.watch_ms == 0:
            raise ValueError(f"watch={watch!r}: looking without a pause keeps a core busy; write '2 s' or so")

    def discovery(self, context: SourceContext, known: Sequence[str]) -> Discovery:
        if self.watch_ms is not None:
            return Watched(context, known, self.location.look, self.watch_ms)
        return Frozen(context, known, self._listed)

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        parsed = FileSplit.of(split)

        def open_at(start: Position | None) -> ChunkReader:
            chunks = self.chunks(self.location.checked(parsed), parsed, start, context)
            return _Unchanged(chunks, self.location, parsed)

        return ReadAhead(open_at, position, context)

    def _listed(self) -> list[FileSplit]:
        """Returns the splits of all files. Runs off the task thread."""
        files = self.location.files()
        if not files:
            raise FileError(f"there are no files to read in {self.location.path}")
        return [split for file in files for split in self.splits_of(self.location.base / file.path, file)]

    @abstractmethod
    def splits_of(self, path: Path, file: FileSplit) -> list[FileSplit]:
        """Returns the parts of a file that can be read independently, in order. Runs off the task thread."""

    @abstractmethod
    def chunks(self, path: Path, split: FileSplit, start: Position | None, context: SourceContext) -> ChunkReader:
        """Opens a split at a position; None: at its beginning. Runs off the task thread."""


class _Unchanged(ChunkReader):
    """Reads chunks, and raises if the file was replaced or overwritten meanwhile. A deleted file is read to its end."""

    def __init__(self, chunks: ChunkReader, location: Location, split: FileSplit) -> None:
        self._chunks = chunks
        self._location = location
        self._split = split

    def read(self) -> Chunk:
        try:
            chunk = self._chunks.read()
        except FileError:
            self._check()  # that it has changed says more than what is wrong inside
            raise
        self._check()
        return chunk

    def _check(self) -> None:
        if (self._location.base / self._split.path).exists():
            self._location.checked(self._split)

    def close(self) -> None:
        self._chunks.close()
