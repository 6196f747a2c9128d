"""The history of a job, `<store>/<job>/history/events.jsonl`: one event a line, written by each JobMaster in turn.

It outlives them all. What a crash tore is nobody's event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.core.paths import JobPaths
from engine.host.rotated import BEGIN, Position, RotatedFile

FILE_BYTES = 8 << 20
FILES = 2
"""The newest 8 to 16 MiB are kept: some thousands of checkpoints."""


class History:
    def __init__(self, store: str | Path, job: str, file_bytes: int = FILE_BYTES) -> None:
        path = Path(store).absolute() / JobPaths(job).history("events.jsonl")
        self._file = RotatedFile(path, file_bytes, FILES)

    def append(self, event: Mapping[str, Any]) -> None:
        self._file.append(msgspec.json.encode(event))

    def events(self) -> Iterator[dict[str, Any]]:
        """All that are kept, oldest first."""
        return (event for event, _ in self.after(BEGIN))

    def after(self, position: Position) -> Iterator[tuple[dict[str, Any], Position]]:
        for line, behind in self._file.after(position):
            try:
                event = msgspec.json.decode(line)
            except ValueError:
                continue
            if isinstance(event, dict) and "kind" in event:
                yield event, behind
