"""The commit gate: the question that is asked about an epoch's rows before they are published, and the verdict.

A gate belongs to a sink. It sees the files that the sink has pre-committed and that the epoch would publish.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class OnFail(StrEnum):
    """What becomes of an epoch whose rows the gate refuses.

    HOLD: it waits for a person. STOP: the job ends, and the epoch is not published. DEAD_LETTER: the refused rows go to
    a table of their own, and the others are published, with the same epoch.
    """

    HOLD = "hold"
    STOP = "stop"
    DEAD_LETTER = "dead_letter"


class OnTimeout(StrEnum):
    """What becomes of an epoch about which the gate says nothing in time. PASS: it is published as it is."""

    HOLD = "hold"
    STOP = "stop"
    PASS = "pass"


class GateQuestion(msgspec.Struct, frozen=True):
    """Asks a gate about the files of one sink. No number is used twice; an answer repeats it.

    `kind` and `asks` say what decides (`engine/core/gates.py`). `files` are paths in the store of the sink's target.
    """

    number: int
    sink: str
    kind: str
    asks: str
    files: list[str]
    checkpoint: int
    epoch: int


class Expected(msgspec.Struct, frozen=True):
    """One expectation and whether it was met. `refused`: so many rows do not meet it; `detail` shows some."""

    name: str
    met: bool
    refused: int = 0
    detail: str = ""


class GateAnswer(msgspec.Struct, frozen=True):
    """The answer to the question of this number. With an `error` it says nothing about the rows.

    `refused` counts the rows that do not meet some expectation; if one is about all rows together, that is all of
    them. `refused_rows` names them by file; a file that is missing there has none.
    """

    number: int
    rows: int = 0
    refused: int = 0
    expectations: list[Expected] = []
    refused_rows: dict[str, list[int]] = {}
    took_ms: float = 0.0
    error: str = ""

    @property
    def passed(self) -> bool:
        return not self.error and bool(self.expectations) and all(one.met for one in self.expectations)


class Decision(StrEnum):
    """What was decided about a sink's rows. UNJUDGED: the gate said nothing in time, and its policy lets them pass."""

    PASSED = "passed"
    RELEASED = "released"
    DISCARDED = "discarded"
    DEAD_LETTER = "dead_letter"
    UNJUDGED = "unjudged"


class Ruling(StrEnum):
    """What a person decides about a held epoch. RETRY asks the gate again."""

    RELEASE = "release"
    DISCARD = "discard"
    RETRY = "retry"


class GateVerdict(msgspec.Struct, frozen=True):
    """The verdict about one sink's rows, as the epoch's manifest has it.

    `withheld`: so many of the `rows` are not in the table. `why`: what the gate found, unless it let all rows pass.
    """

    sink: str
    gate: str
    decision: Decision
    rows: int
    refused: int = 0
    withheld: int = 0
    expectations: list[Expected] = []
    took_ms: float = 0.0
    why: str = ""
