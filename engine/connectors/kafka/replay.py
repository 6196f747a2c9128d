"""Marked replay: how the rows of an epoch get into a target exactly once, whoever sends them and however often.

The rows of an epoch wait in the job's store until its record exists. Then they go out in one transaction, together with
a marker that says which epoch of which job this is. Who comes later reads the marker first: if it names the epoch, or a
later one, the rows are there. Pure: the target is a port, so that tests stop this at each of its steps.

Invariants: nothing is sent before the marker was read behind a fence, which ends open transactions and keeps older
processes out; an epoch's rows and its marker are in the same transaction; no transaction stays open between commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.core.errors import TargetTaken
from engine.protocol.manifest import Committable


class Target(Protocol):
    """What has transactions. A call that raises may have had its effect."""

    def fence(self) -> int | None:
        """Ends every open transaction of this sink, and makes those of older processes fail.

        Returns the epoch of the marker, None if there is none.
        """

    def begin(self) -> None:
        """Begins a transaction. The target has no other one of this sink."""

    def send(self, committable: Committable) -> None:
        """Adds rows to the transaction."""

    def mark(self, epoch: int) -> None:
        """Adds the marker to the transaction."""

    def commit(self) -> None:
        """Makes what the transaction has visible, all at once."""

    def give_up(self) -> None:
        """Aborts the transaction, if that is possible. It never raises: the next fence does it for certain."""


class MarkedReplay:
    """Commits epochs of one sink, in their order. `name` says which sink, for messages."""

    def __init__(self, target: Target, name: str) -> None:
        self._target = target
        self._name = name
        self._fenced = False
        self._marker = 0

    def claim(self, next_epoch: int) -> None:
        """Fences, and reads the marker. A target that is ahead of the job's log is refused."""
        self._fence()
        if self._marker >= next_epoch:
            raise TargetTaken(
                f"{self._name} has the rows of epoch {self._marker}, and the log of the job ends with epoch "
                f"{next_epoch - 1}: an older copy of the job's folder was brought back. Bring back the newest copy, or "
                "let another job go on from here: --fork NAME"
            )

    def would_send(self, epoch: int) -> bool:
        """Returns whether the rows of this epoch are missing, as far as is known."""
        if not self._fenced:
            self._fence()
        return self._marker < epoch

    def commit(self, epoch: int, committables: Sequence[Committable]) -> None:
        """Sends the rows of an epoch unless they are there."""
        if not self.would_send(epoch) or not committables:
            return
        self._fenced = False  # until the commit has answered, nobody knows what the target has
        try:
            self._target.begin()
            for committable in committables:
                self._target.send(committable)
            self._target.mark(epoch)
            self._target.commit()
        except BaseException:
            self._target.give_up()
            raise
        self._fenced = True
        self._marker = epoch

    def _fence(self) -> None:
        self._fenced = False
        self._marker = self._target.fence() or 0
        self._fenced = True
