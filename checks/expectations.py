"""What an audit can expect of a DataFrame, and what became of it: plain values, which `_gx` hands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NoRows:
    """The query over `{batch}`, and whatever temporary views there are, gives no rows; if it does, they are wrong."""

    query: str
    meaning: str


@dataclass(frozen=True)
class NotNull:
    column: str

    @property
    def meaning(self) -> str:
        return f"{self.column} is never NULL"


Expectation = NoRows | NotNull


@dataclass(frozen=True)
class Evaluated:
    """One expectation, evaluated or broken. `error`: it could not be evaluated, which says nothing about the data."""

    expectation: Expectation
    success: bool
    unexpected: int
    rows: list[dict[str, Any]]
    error: str = ""
