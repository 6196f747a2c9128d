"""The ports of a slot. The same slot code runs on Spark and in the simulator; only the ports are implemented twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from engine.core.pieces import Pieces
from engine.protocol.epoch_records import Created
from engine.protocol.ids import AttemptId, ChannelId
from engine.protocol.messages import SlotMessage
from engine.protocol.signals import Signal

Element: TypeAlias = pa.RecordBatch | Signal
Data: TypeAlias = bytes | memoryview | Pieces
"""The content of a file to write. A store keeps no reference to it."""


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
    """Runs work that blocks, away from the task thread.

    The works of a queue run one at a time, in the order of submission, and their results come back in that order.
    A queue does not wait for another one while there are threads. Every work runs and comes back, whatever its
    submitter has left meanwhile: who gets a result has to look whether it still wants it.
    """

    def submit(self, queue: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Runs `work` in the caller's context, then calls `done` on the task thread with its result or its exception.

        `done` is never called before `submit` has returned.
        """


class Control(Protocol):
    """The slot's end of its control stream.

    Messages arrive in the order in which they were sent, each way. If the stream breaks, both ends hear of it; messages
    sent shortly before may be lost, and nothing that is sent later arrives. Streams of two slots never mix.
    """

    def send(self, message: SlotMessage) -> None:
        """Sends a message to the JobMaster. It never blocks and never raises, also if the stream is broken."""


class Store(Protocol):
    """Keeps snapshots, the epoch log and tables.

    A path is relative and made of plain names; any other one raises a StoreError. A file is durable only after `sync`
    or `create`; a crash of the host forgets the others. A new name in a directory is durable only with the next `sync`
    or `create` there. Whatever else fails raises a StoreError.
    """

    def write(self, path: str, data: Data) -> None:
        """Creates or replaces a file, and makes its directories. The file is not durable before `sync`."""

    def sync(self, paths: list[str]) -> None:
        """Makes these files and their names durable. Raises a StoreError if one does not exist."""

    def create(self, path: str, data: bytes) -> Created:
        """Creates a durable file with these bytes if there is no file of this name. This is the one atomic step.

        Returns EXISTS for any file of this name, even one with the same bytes: it may be the caller's own, and its name
        is durable. Returns UNKNOWN if it can't tell; then the file may exist, or appear later. Raises a StoreError only
        if it failed before anything became visible to other processes.
        """

    def read(self, path: str) -> bytes:
        """Returns the content of a file; raises FileNotFoundError if there is no file of this name."""

    def read_all(self, paths: list[str]) -> list[bytes | None]:
        """Returns the content of each file, in the order of the paths; None if there is no file of this name.

        A store that takes long to answer is asked for several at a time.
        """

    def sizes(self, paths: list[str]) -> list[int | None]:
        """Returns the number of bytes of each file, in the order of the paths; None if there is no file of this name.

        It asks as `read_all` does.
        """

    def list(self, prefix: str) -> list[str]:
        """Returns the sorted paths of all files below a directory; the empty prefix is the whole store.

        The list is empty if there is no such directory. Files whose names begin with a dot are left out. Files that
        were made a moment ago may be missing: who must know whether a file exists reads or creates it.
        """

    def delete(self, path: str) -> None:
        """Deletes a file, or a directory with all its content, dot files included. Does nothing if there is none."""

    def copy_from(self, path: str, source: Store, source_path: str) -> bool:
        """Copies a file of another store without moving its bytes through this process. `sync` makes it durable.

        Later writes and deletes of one of the two leave the other as it is. Returns False, and does nothing, if these
        two stores can't do that: then the caller reads and writes.
        """

    def uri(self, path: str) -> str:
        """Returns the URI by which Spark reads this file."""

    def below(self, path: str) -> Store:
        """Returns a store that begins at this directory."""
