"""`KafkaCommitter` sends the rows of epochs, and deletes their files afterwards. It runs in the JobMaster."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from engine.connectors.kafka.replay import MarkedReplay
from engine.connectors.kafka.transactions import KafkaTarget
from engine.core.errors import StoreError
from engine.core.ports import Store
from engine.core.sinks import Committer, Found, Tidied
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable

_FILE_NAME = re.compile(r"(?P<generation>\d+)-(?P<attempt>\d+)-\d+-\d+\.arrow")


def file_name_of(attempt: AttemptId, subtask: int, number: int) -> str:
    """Returns the name of a file that a subtask writes. No name is used twice."""
    name = f"{attempt.generation:04d}-{attempt.attempt:04d}-{subtask:04d}-{number:06d}.arrow"
    assert _FILE_NAME.fullmatch(name)
    return name


class KafkaCommitter(Committer):
    """`folder`: where the writers put files. `target`: makes the target, once the id of the job is known."""

    def __init__(self, store: Store, folder: str, name: str, target: Callable[[str], KafkaTarget]) -> None:
        self._store = store
        self._folder = folder
        self._name = name
        self._make_target = target
        self._target: KafkaTarget | None = None
        self._replay: MarkedReplay | None = None
        self._spent: list[str] = []

    def look(self, job_id: str, epoch: int) -> Found:
        self._make_target(job_id).check()
        return Found()

    def claim(self, job_id: str, next_epoch: int) -> None:
        if self._target is None or self._replay is None:
            self._target = self._make_target(job_id)
            self._replay = MarkedReplay(self._target, self._name)
        self._replay.claim(next_epoch)

    def check(self, committables: Sequence[Committable]) -> None:
        """Looks for the files: the store may have been away since they were written."""
        written = {one.payload["path"]: one.payload["size"] for one in committables}
        for path, found in zip(written, self._store.sizes(list(written)), strict=True):
            if found != written[path]:
                raise StoreError(
                    f"{self._store.uri(path)} has {found or 'no'} bytes, and {written[path]} were written: was the "
                    "store away?"
                )

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        assert self._target is not None and self._replay is not None, "a sink is claimed before anything is committed"
        if committables and self._replay.would_send(permit.epoch):
            size = sum(one.payload["bytes"] for one in committables)
            self._target.check(size, max(one.payload["largest"] for one in committables))
        self._replay.commit(permit.epoch, committables)
        self._spent += [one.payload["path"] for one in committables]

    def pass_over(self, permit: CommitPermit) -> None:
        pass

    def abort_unknown(self, permit: CommitPermit | None, attempt: AttemptId) -> None:
        """Deletes the files of older attempts: all epochs up to the permit's are sent, and no other one will be."""
        for path in self._store.list(self._folder):
            written = _FILE_NAME.fullmatch(path.removeprefix(f"{self._folder}/"))
            if written and AttemptId(int(written["generation"]), int(written["attempt"])) < attempt:
                self._store.delete(path)

    def tidy(self, generation: int, epoch: int, kept_from: int, now_ms: float) -> Tidied:
        """Deletes the files of rows that were sent."""
        spent, self._spent = self._spent, []
        for path in spent:
            self._store.delete(path)
        return Tidied(deleted=len(spent))
