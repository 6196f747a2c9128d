"""The history of a job, `<store>/<job>/history/events.jsonl`: one event a line, written by each JobMaster in turn.

It outlives every JobMaster. Lines cut short by a crash are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine.core.paths import JobPaths
from engine.host.rotated import BEGIN, Position, RotatedFile
from engine.jobmaster.events import AnyEvent, decode

FILE_BYTES = 8 << 20
FILES = 2
"""The newest 8 to 16 MiB are kept: some thousands of checkpoints."""


class History:
    def __init__(self, store: str | Path, job: str, file_bytes: int = FILE_BYTES) -> None:
        path = Path(store).absolute() / JobPaths(job).history("events.jsonl")
        self._file = RotatedFile(path, file_bytes, FILES)

    def append(self, event: AnyEvent) -> None:
        self._file.append(msgspec.json.encode(event))

    def events(self) -> Iterator[AnyEvent]:
        """Returns all events that are kept, oldest first."""
        return (event for event, _ in self.after(BEGIN))

    def after(self, position: Position) -> Iterator[tuple[AnyEvent, Position]]:
        """Yields the events after a position, each with the position after it."""
        for line, behind in self._file.after(position):
            event = decode(line)
            if event is not None:
                yield event, behind
