"""`env.params`: the parameters that a job can be started with. `weir describe` lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, TypeVar

from engine.core.errors import JobError

T = TypeVar("T", bool, int, float, str)


@dataclass(frozen=True)
class Param:
    """A parameter that the job has asked for."""

    name: str
    default: Any
    help: str


class Params:
    """The parameters that a job was started with, as in `weir run JOB --param rate=50000`."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        self.declared: dict[str, Param] = {}

    def get(self, name: str, default: T, help: str = "") -> T:
        """Returns the value that the job was started with, or `default`. The value has the type of `default`.

        `weir describe` shows the name, the default and the `help` text.

            rate = env.params.get("rate", 1000, "records per second")
        """
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
            raise JobError(f"parameter {name}={text!r} is not of type {type(default).__name__}") from error

    def check_all_known(self, arguments: Sequence[Parameter] = ()) -> None:
        """Raises a `JobError` if the job was started with a parameter that it has not asked for.

        `arguments`: those of the job's function besides the environment. Nobody passes them.
        """
        unknown = sorted(set(self._given) - set(self.declared))
        for argument in arguments:
            if argument.name in unknown:
                raise JobError(
                    f"the job has no parameter {argument.name}, only an argument of that name: declare it in the body, "
                    f'as in {argument.name} = env.params.get("{argument.name}", {argument.default!r}, "what it means")'
                )
        if unknown:
            known = ", ".join(sorted(self.declared)) or "none"
            raise JobError(f"the job has no parameter {', '.join(unknown)}; it has: {known}")
