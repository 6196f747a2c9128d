"""`env.params`: what a job can be started with, typed by its defaults and listed by `weir describe`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.core.errors import JobError

T = TypeVar("T", bool, int, float, str)


@dataclass(frozen=True)
class Param:
    name: str
    default: Any
    help: str


class Params:
    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        self.declared: dict[str, Param] = {}

    def get(self, name: str, default: T, help: str = "") -> T:
        """The value given at the start, converted to the type of `default`."""
        self.declared[name] = Param(name, default, help)
        text = self._given.get(name)
        if text is None:
            return default
        if isinstance(default, bool):
            if text.lower() not in ("true", "false"):
                raise JobError(f"parameter {name}={text!r}: write true or false")
            return text.lower() == "true"
        try:
            return type(default)(text)
        except ValueError as error:
            raise JobError(f"parameter {name}={text!r} is not a {type(default).__name__}") from error

    def check_all_known(self) -> None:
        unknown = sorted(set(self._given) - set(self.declared))
        if unknown:
            known = ", ".join(sorted(self.declared)) or "none"
            raise JobError(f"the job has no parameter {', '.join(unknown)}; it has: {known}")
