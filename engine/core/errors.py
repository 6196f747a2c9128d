"""Failures inside a slot, told apart: the user's function, the platform, a wrong schema."""

from __future__ import annotations


class WeirError(Exception):
    """Base of what Weir raises on purpose: the message says what happened, where, and what to do."""


class UserFunctionError(WeirError):
    """A function of the job raised."""

    def __init__(self, uid: str, subtask: int, position: str, cause: BaseException) -> None:
        super().__init__(f"operator {uid!r}, subtask {subtask}, {position}: {type(cause).__name__}: {cause}")
        self.uid = uid


class SchemaMismatch(WeirError):
    """Records do not have the declared schema."""


class ChannelError(WeirError):
    """A channel lost, repeated or reordered a frame."""
