"""Which snapshots are needed, and which checkpoint directories may be deleted. The caller deletes them.

There is one definition, for the retention of a running job and for `weir gc`: an epoch needs the snapshot that its
manifest lies in, and those that hold the files which the manifest names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from engine.core.paths import JobPaths
from engine.protocol.manifest import Manifest, ManifestRef
from engine.snapshot.epoch_log import EpochLog

Snapshot = tuple[int, int]
"""A generation, and the number of a checkpoint in it."""


class Needs:
    """The snapshots that epochs need. Manifests never change, so each is read once."""

    def __init__(self, log: EpochLog) -> None:
        self._log = log
        self._known: dict[ManifestRef, frozenset[Snapshot]] = {}

    def add(self, ref: ManifestRef, manifest: Manifest | None) -> None:
        """Remembers what an epoch needs, so that nobody has to read its manifest. None: that is deleted."""
        self._known[ref] = self._of(ref, manifest)

    def of(self, refs: Iterable[ManifestRef]) -> set[Snapshot]:
        """Returns what these epochs need, and forgets all others. Raises CorruptSnapshot if a manifest is damaged."""
        known = {ref: self._known.get(ref) or self._read(ref) for ref in refs}
        self._known = known
        return {snapshot for snapshots in known.values() for snapshot in snapshots}

    def _read(self, ref: ManifestRef) -> frozenset[Snapshot]:
        try:
            self._log.store.read(ref.path)
        except FileNotFoundError:
            return self._of(ref, None)  # retention has deleted this snapshot
        return self._of(ref, self._log.read_manifest(ref))

    def _of(self, ref: ManifestRef, manifest: Manifest | None) -> frozenset[Snapshot]:
        named = [file.path for state in manifest.subtasks for file in state.files] if manifest is not None else []
        parsed = map(self._log.paths.parse_checkpoint, [ref.path, *named])
        return frozenset(snapshot for snapshot in parsed if snapshot is not None)


def disposable(
    paths: JobPaths, files: Iterable[str], kept: Sequence[ManifestRef], needed: Collection[Snapshot], generation: int
) -> list[str]:
    """Returns the checkpoint directories that are not `needed`: older than all kept ones, or of an older generation.

    Newer directories of this generation may belong to checkpoints under way.
    """
    oldest = min((ref.checkpoint for ref in kept), default=0)
    found = {parsed for path in files if (parsed := paths.parse_checkpoint(path))}
    return [
        paths.checkpoint(gen, checkpoint)
        for gen, checkpoint in sorted(found.difference(needed))
        if gen < generation or checkpoint < oldest
    ]
