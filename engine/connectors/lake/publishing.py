"""`LakeCommitter` publishes the epochs of a job in a lake table, each by one commit that names its files.

Invariant: the commit that publishes an epoch also writes the epoch's number into the table's own log, and it is refused
if anybody has committed since that number was read. So an epoch is published once, whoever publishes it: a JobMaster
that slept through its own replacement finds the number, or is refused and then finds it. Other writers of the table
only make it try again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from engine.connectors.lake.columns import schema_of_text
from engine.core.errors import StoreError, TargetTaken
from engine.core.ports import Store
from engine.core.sinks import Committer
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable

TRIES = 20
"""So often a commit is tried again at once after others have committed first. Then the job restarts, and goes on."""


class Conflict(Exception):
    """Somebody else has committed to the table since it was read."""


@dataclass(frozen=True)
class LakeFile:
    name: str
    size: int
    rows: int
    payload: dict[str, Any]

    @classmethod
    def of(cls, committable: Committable) -> LakeFile:
        payload = committable.payload
        return cls(payload["name"], payload["size"], payload["rows"], payload)


def is_published(last: int | None, epoch: int) -> bool:
    """Decides whether an epoch is in the table. `last`: the newest epoch of the job there; None: there is none.

    Epochs are published in their order, so an older one is there, or it had no rows.
    """
    return last is not None and last >= epoch


def columns_of(files: Sequence[LakeFile]) -> pa.Schema:
    """Returns the columns of the files of an epoch: all are of one job, and so have the same."""
    return schema_of_text(files[0].payload["columns"])


class LakeCommitter(Committer):
    """`target` is the table, for messages.

    It deletes no file. A file that no epoch has published is invisible to readers, like one of a failed write of any
    other engine, and goes with the table's own upkeep (VACUUM, remove_orphan_files).
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._job_id: str | None = None

    # --- what a kind of tables does ---

    @abstractmethod
    def _refresh(self) -> bool:
        """Reads the newest version of the table. Returns False if there is no table."""

    @abstractmethod
    def _last(self) -> int | None:
        """Returns the newest epoch of this job in the version that was read; None if there is none."""

    @abstractmethod
    def _publish(self, epoch: int, files: Sequence[LakeFile]) -> None:
        """Commits on top of the version that was read. Raises Conflict if that is not the newest any more."""

    @abstractmethod
    def _make_durable(self) -> None:
        """Makes the version that was read, or published, durable."""

    @abstractmethod
    def _place(self) -> tuple[Store, str]:
        """Returns the store of the files, and their folder there. The table was read before."""

    @property
    def _app(self) -> str:
        """The name of the job in the table's log. No other job has it, in this store or in another."""
        assert self._job_id is not None, "a table is claimed before anything is committed to it"
        return f"weir-{self._job_id}"

    # --- the verbs ---

    def claim(self, job_id: str, next_epoch: int) -> None:
        """Refuses a table that is ahead of the job's log. Other jobs may write to the table, too."""
        self._job_id = job_id
        if self._refresh() and is_published(self._last(), next_epoch):
            raise TargetTaken(
                f"{self._target} has epoch {self._last()} of this job, whose log ends with epoch {next_epoch - 1}: an "
                "older copy of the job's folder was brought back. Nothing was changed in the table. Bring the table "
                "back to the same time, too, or let another job go on from here: --fork NAME"
            )

    def check(self, committables: Sequence[Committable]) -> None:
        if not committables:
            return
        if not self._refresh():
            raise self._gone()
        store, folder = self._place()
        files = [LakeFile.of(one) for one in committables]
        paths = [f"{folder}/{file.name}" for file in files]
        for path, file, found in zip(paths, files, store.sizes(paths), strict=True):
            if found is None:
                raise StoreError(f"{store.uri(path)} is gone: was the store away, or did a vacuum delete it?")
            if found != file.size:
                raise StoreError(f"{store.uri(path)} has {found} bytes, and {file.size} were written")

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        """Publishes the files of an epoch. An epoch without rows leaves no trace in the table."""
        if not committables:
            return
        if not self._settle(permit.epoch, [LakeFile.of(one) for one in committables]):
            raise self._gone()

    def pass_over(self, permit: CommitPermit) -> None:
        """Writes the epoch's number without files: a JobMaster that was replaced can't publish it later."""
        self._settle(permit.epoch, [])

    def abort_unknown(self, permit: CommitPermit | None, attempt: AttemptId) -> None:
        pass

    def _settle(self, epoch: int, files: Sequence[LakeFile]) -> bool:
        """Publishes an epoch unless it is published. Returns False if there is no table."""
        for _ in range(TRIES):
            if not self._refresh():
                return False
            if is_published(self._last(), epoch):
                self._make_durable()  # its publisher may have died before it did
                return True
            try:
                self._publish(epoch, files)
            except Conflict:
                continue
            self._make_durable()
            return True
        raise StoreError(f"others have committed to {self._target} first, {TRIES} times in a row")

    def _gone(self) -> StoreError:
        return StoreError(f"{self._target} is gone: bring it back, with the files that the job has written there")
