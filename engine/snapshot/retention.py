"""Decides which checkpoint directories may be deleted. Pure: the caller deletes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from engine.core.paths import JobPaths
from engine.protocol.manifest import ManifestRef


def disposable(
    paths: JobPaths,
    files: Iterable[str],
    kept: Sequence[ManifestRef],
    generation: int,
    copied: Collection[tuple[int, int]] = (),
) -> list[str]:
    """Returns the checkpoint directories that no kept epoch needs: older than all kept ones, or of an older generation.

    Newer directories of this generation may belong to checkpoints under way. `copied` are the (generation, checkpoint)
    of snapshots that become savepoints.
    """
    needed = {parsed for ref in kept if (parsed := paths.parse_checkpoint(ref.path))}.union(copied)
    oldest = min((ref.checkpoint for ref in kept), default=0)
    found = {parsed for path in files if (parsed := paths.parse_checkpoint(path))}
    return [
        paths.checkpoint(gen, checkpoint)
        for gen, checkpoint in sorted(found - needed)
        if gen < generation or checkpoint < oldest
    ]
