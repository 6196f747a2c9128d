"""`Housekeeping` bounds what a job keeps: committers tidy their output, and old records of the epoch log are deleted.

It follows the commits and never holds them up: its I/O runs in a lane of its own, one round at a time. A round that
fails is noted and done again after a later commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.core.errors import SyncFailed
from engine.core.sinks import Committer, Tidied
from engine.jobmaster import events
from engine.jobmaster.actions import Action, Done, Note, RunOffLoop
from engine.snapshot.epoch_log import EpochLog

LANE = "tidy"
TRIM_EVERY = 100
"""Old records of the epoch log go after so many epochs: finding them costs a list."""


class Housekeeping:
    def __init__(
        self,
        epoch_log: EpochLog,
        committers: Mapping[str, Committer],
        off_loop: Callable[[str, Callable[[], Any], Done], RunOffLoop],
    ) -> None:
        self._epoch_log = epoch_log
        self._committers = dict(committers)
        self._off_loop = off_loop
        self._under_way = False
        self._trimmed: int | None = None  # the epoch of the last trim

    def after_commit(self, generation: int, epoch: int, kept_from: int, now_ms: float) -> list[Action]:
        """Begins a round, unless one is under way. The job never goes back behind `kept_from`."""
        if self._under_way:
            return []
        self._under_way = True
        trim = self._trimmed is None or epoch - self._trimmed >= TRIM_EVERY

        def work() -> list[tuple[str, Tidied]]:
            tidied = []
            for uid, committer in self._committers.items():
                try:
                    tidied.append((uid, committer.tidy(generation, epoch, kept_from, now_ms)))
                except SyncFailed:
                    raise  # it is unknown now what is durable
                except Exception as error:  # an author's committer, too: it must not keep the others from it
                    tidied.append((uid, Tidied(problems=(f"{type(error).__name__}: {error}",))))
            if trim:
                self._epoch_log.trim(kept_from)
            return tidied

        def done(tidied: list[tuple[str, Tidied]] | None, error: BaseException | None, _: float) -> list[Action]:
            self._under_way = False
            if trim and error is None:
                self._trimmed = epoch
            return [Note(event) for uid, one in tidied or () for event in _events(uid, one)]

        return [self._off_loop(LANE, work, done)]


def _events(uid: str, one: Tidied) -> list[events.AnyEvent]:
    found: list[events.AnyEvent] = [events.NotTidied(uid, problem) for problem in one.problems]
    if one.folded or one.deleted:
        found.append(events.Tidied(uid, one.folded, one.into, one.written_bytes, one.deleted))
    return found
