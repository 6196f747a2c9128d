"""Finds what nobody needs of a job's snapshots and savepoints: what JobMasters left that died or were replaced.

Any process may do so at any moment, beside a running JobMaster too. Invariants: only files of generations that a later
fence has ended are garbage, since nobody but the newest generation takes checkpoints or publishes. A folder that a
record of the epoch log names, or a file of such an epoch, is needed. If a record or a manifest can't be read, nothing
is garbage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.snapshot.beginning import is_claim
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.savepoints import SavepointFolder


@dataclass(frozen=True)
class Garbage:
    """A file or a folder that nobody needs, with the reason and the number of its files."""

    path: str
    why: str
    files: int = 1


def find_garbage(log: EpochLog) -> list[Garbage]:
    """Returns the garbage of a job. Raises CorruptSnapshot if a record or a manifest is damaged."""
    last = log.last()
    if last is None:
        return []  # a fork, or a job that begins with a savepoint, is being made
    return [*_snapshots(log, last.generation), *_savepoints(log.store, log.paths, last.generation)]


def _snapshots(log: EpochLog, generation: int) -> Iterator[Garbage]:
    found: dict[tuple[int, int], list[str]] = {}
    for fenced in range(1, generation):
        for path in log.store.list(log.paths.generation(fenced)):
            if parsed := log.paths.parse_checkpoint(path):
                found.setdefault(parsed, []).append(path)
    if not found:
        return
    needed = _needed(log)
    for (of, checkpoint), files in sorted(found.items()):
        # A snapshot that was claimed with a savepoint is left to the JobMaster, which deletes both.
        if (of, checkpoint) not in needed and not any(map(is_claim, files)):
            yield Garbage(log.paths.checkpoint(of, checkpoint), "a checkpoint that no epoch needs", len(files))


def _needed(log: EpochLog) -> set[tuple[int, int]]:
    """Returns the checkpoints that records of the log name, or whose files the manifests of such records name."""
    paths: list[str] = []
    for ref in log.refs():
        paths.append(ref.path)
        try:
            log.store.read(ref.path)
        except FileNotFoundError:
            continue  # retention has deleted this snapshot
        manifest = log.read_manifest(ref)
        paths += [file.path for state in manifest.subtasks for file in state.files]
    return {parsed for path in paths if (parsed := log.paths.parse_checkpoint(path))}


def _savepoints(store: Store, paths: JobPaths, generation: int) -> Iterator[Garbage]:
    """Yields what writers of savepoints left that were replaced before they had made one."""
    writers: dict[tuple[str, str], int] = {}
    for path in store.list(paths.savepoints()):
        parts = path.removeprefix(f"{paths.savepoints()}/").split("/")
        if len(parts) > 2:
            writers[parts[0], parts[1]] = writers.get((parts[0], parts[1]), 0) + 1
    for (name, writer), files in sorted(writers.items()):
        parsed = writer.split("-")
        if len(parsed) != 4 or not parsed[1].isdecimal() or int(parsed[1]) >= generation:
            continue
        folder = SavepointFolder(store.below(paths.savepoint(name)))
        if not folder.exists() or not folder.head().manifest.startswith(f"{writer}/"):
            yield Garbage(f"{paths.savepoint(name)}/{writer}", "a savepoint that was not completed", files)
