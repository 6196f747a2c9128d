"""Expectations of an audit and their results, as plain values. `_gx` translates them for Great Expectations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NoRows:
    """Expects that the query over `{batch}` and temporary views gives no rows. The rows that it gives are wrong.

    `name` is that of its class in Great Expectations, which their pages and results show.
    """

    query: str
    meaning: str
    name: str


@dataclass(frozen=True)
class NotNull:
    table: str
    column: str

    @property
    def meaning(self) -> str:
        return f"{self.table}: {self.column} is never NULL"


Expectation = NoRows | NotNull


@dataclass(frozen=True)
class Evaluated:
    """The result of one expectation. With an `error` it could not be evaluated and says nothing about the data."""

    expectation: Expectation
    success: bool
    unexpected: int
    rows: list[dict[str, Any]]
    error: str = ""
