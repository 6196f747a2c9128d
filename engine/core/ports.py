"""The ports of what runs in a slot: the same code runs on Spark and in the simulator, only these differ."""

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
    """One element on a channel. `backlog`: bytes that still wait at the sender; receivers grant by it."""

    sequence: int
    element: Element
    size: int
    backlog: int


class Clock(Protocol):
    def now_ms(self) -> float:
        """Monotonic."""

    def wall_ms(self) -> int:
        """Unix time."""


class Transport(Protocol):
    """Data channels of one attempt. Nothing here blocks."""

    def open(self, attempt: AttemptId, channel: ChannelId, address: str, schema: pa.Schema) -> None:
        """Connect to the receiver of this channel."""

    def send(self, attempt: AttemptId, channel: ChannelId, frame: Frame) -> None:
        """Only with credit: what is handed over here is in flight."""

    def grant(self, attempt: AttemptId, channel: ChannelId, granted_total: int) -> None:
        """Tell the sender of this channel what it may have sent in all."""

    def close(self, attempt: AttemptId) -> None:
        """Forget every channel of this attempt; late frames and grants of it are dropped."""


class Offload(Protocol):
    def submit(self, lane: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run `work` off the task thread, one after the other within a lane; then `done` on the task thread."""


class Control(Protocol):
    def send(self, message: SlotMessage) -> None:
        """To the JobMaster; never blocks."""


class Store(Protocol):
    """Where snapshots, the epoch log and tables live.

    A file written is durable only after `sync`. `create` is the one atomic step: it makes a durable file that did not
    exist, or says that it exists, or that the outcome is unknown.
    """

    def write(self, path: str, data: bytes) -> None:
        """Make or replace a file. Not durable before `sync`."""

    def sync(self, paths: list[str]) -> None:
        """Make these files, and their names, durable."""

    def create(self, path: str, data: bytes) -> Created:
        """Durably create the file with these bytes if there is none of this name.

        A StoreError is raised only before anything was tried that others could see.
        """

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError where there is none."""

    def list(self, prefix: str) -> list[str]:
        """The files below a directory, sorted; empty where there is none."""

    def delete(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it; none: nothing happens."""

    def uri(self, path: str) -> str:
        """How Spark would address this file."""
