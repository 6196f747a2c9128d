"""Checks of what an author hands to an operator, made when the job is written: functions, sinks, missing methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from engine.core.errors import JobError
from engine.core.functions import Function

F = TypeVar("F")


class NoSuchMethod(JobError, AttributeError):
    """Says what to write instead of a method that this kind of stream does not have."""


def checked_function(what: str, given: F, rich: type[Function], example: str) -> F:
    """Returns what was given if it is a function, or an object of `rich`."""
    _check_object(what, given, rich)
    if (isinstance(given, Function) or not callable(given)) and not isinstance(given, rich):
        raise JobError(f"{what} takes a function, such as {example}, or a {rich.__name__}, not {shown(given)}")
    return given


def checked_process_function(what: str, given: F, rich: type[Function]) -> F:
    """Returns what was given if it is an object of `rich`. A plain function can't keep state."""
    _check_object(what, given, rich)
    if not isinstance(given, rich):
        raise JobError(
            f"{what} takes an object of a class that extends {rich.__name__}, not {shown(given)}; a plain function "
            "goes into map, flat_map or filter, before key_by"
        )
    return given


def checked_is(what: str, given: F, kind: type, instead: str) -> F:
    """Returns what was given if it is an object of `kind`; `instead` says what to write."""
    if isinstance(given, type) and issubclass(given, kind):
        raise JobError(f"{what} takes an object, not the class {given.__name__}: write {given.__name__}(...)")
    if not isinstance(given, kind):
        raise JobError(f"{what} takes {instead}, not {shown(given)}")
    return given


def no_method(stream: object, name: str, instead: Mapping[str, str]) -> NoReturn:
    """Raises the error for a method that a stream does not have."""
    kind = type(stream).__name__
    if name in instead:
        raise NoSuchMethod(f"a {kind} has no {name}(...): {instead[name]}")
    raise AttributeError(f"{kind!r} object has no attribute {name!r}")


def shown(given: Any) -> str:
    """Returns a value as messages show it."""
    name = getattr(given, "__name__", "")
    if callable(given) and name:
        return "a lambda" if name == "<lambda>" else f"the {'class' if isinstance(given, type) else 'function'} {name}"
    return repr(given) if isinstance(given, str | int | float | None) else f"an object of {type(given).__name__}"


def _check_object(what: str, given: object, rich: type[Function]) -> None:
    if isinstance(given, type) and issubclass(given, Function):
        raise JobError(f"{what} takes an object of {given.__name__}, not the class: write {given.__name__}()")
