"""The ports of a slot. The same slot code runs on Spark and in the simulator; only the ports are implemented twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from engine.protocol.epoch_records import Created
from engine.protocol.ids import AttemptId, ChannelId
from engine.protocol.messages import SlotMessage
from engine.protocol.signals import Signal

Element: TypeAlias = pa.RecordBatch | Signal


@dataclass(frozen=True, slots=True)
class Frame:
    """One element on a channel. `backlog` is the number of bytes that wait at the sender; receivers grant by it."""

    sequence: int
    element: Element
    size: int
    backlog: int


class Clock(Protocol):
    def now_ms(self) -> float:
        """Returns monotonic time."""

    def wall_ms(self) -> int:
        """Returns Unix time."""


class Transport(Protocol):
    """The data channels between slots. No method blocks or raises; a channel that breaks is reported later."""

    def open(self, attempt: AttemptId, channel: ChannelId, address: str, schema: pa.Schema) -> None:
        """Connects to the receiver of this channel."""

    def send(self, attempt: AttemptId, channel: ChannelId, frame: Frame) -> None:
        """Sends a frame. The caller must have credit for it: the frame counts as in flight from here on."""

    def grant(self, attempt: AttemptId, channel: ChannelId, granted_total: int) -> None:
        """Tells the sender of this channel how many bytes it may send in total since the attempt began."""

    def close(self, attempt: AttemptId) -> None:
        """Closes every channel of this attempt and of earlier ones. What is sent or granted on them later is dropped.

        The other end of each channel hears that it broke. Frames and grants that had arrived may still be delivered.
        """


class Offload(Protocol):
    def submit(self, lane: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Runs `work` off the task thread, then calls `done` on the task thread. The works of a lane run in order."""


class Control(Protocol):
    def send(self, message: SlotMessage) -> None:
        """Sends a message to the JobMaster; never blocks."""


class Store(Protocol):
    """Keeps snapshots, the epoch log and tables.

    A file is durable only after `sync`. `create` is the one atomic step: it creates a durable file that did not exist,
    or says that the file exists, or that the outcome is unknown.
    """

    def write(self, path: str, data: bytes) -> None:
        """Creates or replaces a file. The file is not durable before `sync`."""

    def sync(self, paths: list[str]) -> None:
        """Makes these files and their names durable."""

    def create(self, path: str, data: bytes) -> Created:
        """Creates a durable file with these bytes if there is no file of this name.

        Raises a StoreError only if it failed before anything became visible to other processes.
        """

    def read(self, path: str) -> bytes:
        """Returns the content of a file; raises FileNotFoundError if it does not exist."""

    def list(self, prefix: str) -> list[str]:
        """Returns the sorted paths of all files below a directory; empty if there is no such directory."""

    def delete(self, path: str) -> None:
        """Deletes a file, or a directory with all its content. Does nothing if there is none."""

    def uri(self, path: str) -> str:
        """Returns the URI by which Spark reads this file."""
