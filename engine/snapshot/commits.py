"""Commits an epoch to all sinks of a job. The Publisher does so, and whoever goes back to an older epoch."""

from __future__ import annotations

from collections.abc import Mapping

from engine.core.connectors import calling
from engine.core.sinks import Committer
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.manifest import Manifest
from engine.store.failpoints import Point, failpoint


@failpoint(after=Point.AFTER_COMMIT)
def commit_epoch(committers: Mapping[str, Committer], permit: CommitPermit, manifest: Manifest) -> None:
    """Publishes the output of an epoch, or hides later output if the epoch is a rewind. Idempotent."""
    assert permit.epoch == manifest.epoch
    if manifest.epoch == 0:
        return  # a fork begins with another job's state, and has published nothing itself
    for uid, committer in committers.items():
        if manifest.rewound_to is not None:
            with calling(uid, None, committer, "rewind()"):
                committer.rewind(permit, manifest.rewound_to)
            continue
        with calling(uid, None, committer, "commit()"):
            committer.commit(permit, [c for c in manifest.commits if c.uid == uid])
