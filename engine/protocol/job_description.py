"""`JobDescription`: the job that took a snapshot, as far as its state, positions and output depend on it.

Every manifest carries one. A changed job is compared with the description in its newest manifest before it starts.
"""

from __future__ import annotations

import msgspec


class Column(msgspec.Struct, frozen=True):
    name: str
    type: str

    def __str__(self) -> str:
        return f"{self.name} {self.type}"


class OperatorDescription(msgspec.Struct, frozen=True):
    """An operator that may keep state.

    `state` holds by name what makes its state unreadable if it changes: the columns of a running value, the size of
    windows, their aggregates, the types of broadcast state. State that a function asks for in `open` is not known
    before the function runs; its slot compares that.
    """

    uid: str
    kind: str
    keys: list[Column] = []
    state: dict[str, str] = {}


class SourceDescription(msgspec.Struct, frozen=True):
    """A source. `positions` says what its positions refer to, such as a number of splits; empty: to what they name.

    `event_time` is the column that its watermark was made of; empty: it has none.
    """

    uid: str
    kind: str
    positions: str = ""
    event_time: str = ""


class SinkDescription(msgspec.Struct, frozen=True):
    """A sink. `table` is the path of its Weir table; empty for other sinks.

    `first_epoch` is the epoch with which the sink came into the job. Its output begins there. `gains_columns`: its
    target may get new ones.
    """

    uid: str
    kind: str
    target: str
    table: str
    columns: list[Column]
    first_epoch: int
    gains_columns: bool = False


class JobDescription(msgspec.Struct, frozen=True):
    operators: list[OperatorDescription] = []
    sources: list[SourceDescription] = []
    sinks: list[SinkDescription] = []
