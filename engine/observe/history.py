"""The history of a job, `<store>/<job>/history/`: one event a line, written by each JobMaster in turn.

It outlives every JobMaster. Lines cut short by a crash are skipped. In a directory it is the file `events.jsonl`; in a
bucket, where nothing can be appended to, it is a row of objects. Events of savepoints and stops are also kept in
`savepoints.jsonl`, because checkpoints would push them out of the first file within hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine.core.paths import JobPaths
from engine.host.rotated import BEGIN, Position, RotatedFile
from engine.host.rotated_objects import RotatedObjects
from engine.jobmaster.events import (
    Aborted,
    AnyEvent,
    Completed,
    GateRuled,
    OddAcknowledgement,
    Published,
    SavepointCompleted,
    SavepointFailed,
    SavepointTaken,
    SavepointTriggered,
    StopFailed,
    Stopped,
    Stopping,
    Triggered,
    decode,
)
from engine.store.bucket import is_bucket
from engine.store.opening import open_store

FILE_BYTES = 8 << 20
FILES = 2
"""The newest 8 to 16 MiB are kept: some thousands of checkpoints."""
OBJECT_BYTES = 256 << 10
OBJECTS, SAVEPOINT_OBJECTS = 64, 8
"""In a bucket the newest 16 MiB are kept, and 2 MiB of savepoints. The newest object is written anew each second, and
at each event that can't wait."""
SAVEPOINTS_BYTES = 1 << 20
"""The newest 1 to 2 MiB are kept: more than a thousand savepoints."""

_OF_SAVEPOINTS = (
    SavepointTriggered,
    SavepointTaken,
    SavepointCompleted,
    SavepointFailed,
    Stopping,
    StopFailed,
    Stopped,
)

CAN_WAIT = (Triggered, GateRuled, Published, Completed, Aborted, OddAcknowledgement)
"""Events of every checkpoint: in a bucket they are written each second, all others at once."""


class History:
    def __init__(self, store: str | Path, job: str, file_bytes: int = FILE_BYTES) -> None:
        self._lines = _lines(store, JobPaths(job), "events", file_bytes, OBJECTS)
        self._savepoints = _lines(store, JobPaths(job), "savepoints", SAVEPOINTS_BYTES, SAVEPOINT_OBJECTS)

    def append(self, event: AnyEvent) -> None:
        line = msgspec.json.encode(event)
        self._lines.append(line)
        if isinstance(event, _OF_SAVEPOINTS):
            self._savepoints.append(line)

    def flush(self) -> None:
        """Writes the events that were appended; in a directory they are written already."""
        for lines in (self._savepoints, self._lines):
            if isinstance(lines, RotatedObjects):
                lines.flush()

    def savepoints(self) -> Iterator[AnyEvent]:
        """Returns the events of savepoints and stops that are kept, oldest first."""
        decoded = (decode(line) for line, _ in self._savepoints.after(BEGIN))
        return (event for event in decoded if event is not None)

    def events(self) -> Iterator[AnyEvent]:
        """Returns all events that are kept, oldest first."""
        return (event for event, _ in self.after(BEGIN))

    def after(self, position: Position) -> Iterator[tuple[AnyEvent, Position]]:
        """Yields the events after a position, each with the position after it."""
        for line, behind in self._lines.after(position):
            event = decode(line)
            if event is not None:
                yield event, behind


def _lines(
    store: str | Path, paths: JobPaths, name: str, file_bytes: int, objects: int
) -> RotatedFile | RotatedObjects:
    if is_bucket(store):
        return RotatedObjects(open_store(store), paths.history(name), OBJECT_BYTES, objects)
    return RotatedFile(Path(store).absolute() / paths.history(f"{name}.jsonl"), file_bytes, FILES)
