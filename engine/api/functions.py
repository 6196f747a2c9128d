"""Checks of what an author hands to an operator, made when the job is written: functions, sinks, missing methods."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from engine.api.state_names import check_state_names
from engine.core.authors import defined_at, short_line
from engine.core.errors import JobError
from engine.core.evictors import Evictor
from engine.core.functions import Function, TimerFunction
from engine.core.nearest import nearest
from engine.core.triggers import Trigger

F = TypeVar("F")


class NoSuchMethod(JobError, AttributeError):
    """Says what to write instead of a method that this kind of stream does not have."""


def checked_function(what: str, given: F, rich: type[Function], example: str) -> F:
    """Returns what was given if it is a function, or an object of `rich`."""
    _check_object(what, given, rich)
    if (isinstance(given, Function) or not callable(given)) and not isinstance(given, rich):
        raise JobError(f"{what} takes a function, such as {example}, or a {rich.__name__}, not {shown(given)}")
    _check_written(what, given, rich)
    method = next((name for name in _NEEDED if hasattr(rich, name)), "")
    call = getattr(given, method) if method and isinstance(given, rich) else given
    arguments = example.removeprefix("lambda ").partition(":")[0]
    if not callable_with(call, arguments):
        write = f"def {method}(self, {arguments})" if call is not given else f"as in {example}"
        raise JobError(f"{what}: {_named(given, method)}{_defined(call)} must take ({arguments}): {write}")
    return given


def callable_with(call: Any, arguments: str) -> bool:
    """Says whether a function can be called with such arguments; of one that does not tell them, it is assumed."""
    try:
        inspect.signature(call).bind(*arguments.split(", "))
    except TypeError:
        return False
    except ValueError:  # some builtins do not tell
        return True
    return True


def check_methods(what: str, given: object, methods: Mapping[str, str]) -> None:
    """Refuses methods that can't be called with the arguments that belong to their names."""
    for name, arguments in methods.items():
        call = getattr(given, name)
        if not callable_with(call, arguments):
            raise JobError(
                f"{what}: {_named(given, name)}{_defined(call)} must take ({arguments}): def {name}(self, {arguments})"
            )


def checked_process_function(what: str, given: F, rich: type[Function]) -> F:
    """Returns what was given if it is an object of `rich`. A plain function can't keep state."""
    _check_object(what, given, rich)
    if not isinstance(given, rich):
        elsewhere = callable(given) and not what.startswith("connect")
        plain = "; a plain function goes into map, flat_map or filter, before key_by" if elsewhere else ""
        raise JobError(f"{what} takes an object of a class that extends {rich.__name__}, not {shown(given)}{plain}")
    _check_written(what, given, rich)
    for method in ("process_element", "process_element1", "process_element2", "process_broadcast_element"):
        _check_arguments(what, given, method, "value")
    for method in ("process_match", "process_timed_out_match"):
        _check_arguments(what, given, method, "match")
    if isinstance(given, TimerFunction) and given.has_timers:
        _check_arguments(what, given, "on_timer", "timestamp")
    check_state_names(what, given)
    return given


def checked_pair_function(
    what: str, given: F, rich: type[Function] | tuple[type[Function], ...], method: str, arguments: str
) -> F:
    """Returns what was given if it is an object of `rich`, the function of a join, that can be called with a pair."""
    kinds = rich if isinstance(rich, tuple) else (rich,)
    _check_object(what, given, kinds[0])
    if not isinstance(given, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise JobError(f"{what} takes an object of a class that extends {names}, not {shown(given)}")
    check_methods(what, given, {method: arguments})
    return given


def checked_is(what: str, given: F, kind: type, instead: str) -> F:
    """Returns what was given if it is an object of `kind`; `instead` says what to write."""
    if isinstance(given, type) and issubclass(given, kind):
        raise JobError(f"{what} takes an object, not the class {given.__name__}: write {given.__name__}(...)")
    if not isinstance(given, kind):
        raise JobError(f"{what} takes {instead}, not {shown(given)}")
    return given


def no_method(stream: object, name: str, instead: Mapping[str, str]) -> NoReturn:
    """Raises the error for a method that a stream does not have. `instead` has names in snake case: keyBy is key_by."""
    kind = type(stream).__name__
    methods = [method for method in dir(type(stream)) if not method.startswith("_")]
    snake = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()
    if said := instead.get(snake, f"it is called {snake}" if snake in methods else ""):
        raise NoSuchMethod(f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind} has no {name}(...): {said}")
    raise AttributeError(f"{kind!r} object has no attribute {name!r}{nearest(name, methods)}")


def shown(given: Any) -> str:
    """Returns a value as messages show it."""
    name = getattr(given, "__name__", "")
    if callable(given) and name:
        return "a lambda" if name == "<lambda>" else f"the {'class' if isinstance(given, type) else 'function'} {name}"
    return repr(given) if isinstance(given, str | int | float | None) else f"an object of {type(given).__name__}"


def _check_object(what: str, given: object, rich: type[Function]) -> None:
    if isinstance(given, type) and issubclass(given, Function):
        raise JobError(f"{what} takes an object of {given.__name__}, not the class: write {given.__name__}()")
    check_timers(what, given)


def check_timers(what: str, given: object) -> None:
    """Raises a `JobError` if a function has `on_timer` where no timer can fire."""
    if isinstance(given, Function) and hasattr(given, "on_timer") and not isinstance(given, TimerFunction):
        raise JobError(
            f"{type(given).__name__} has on_timer{_defined(given.on_timer)}, which {what} would never call: timers "
            "belong to keys, so write stream.key_by(...).process(...) and extend KeyedProcessFunction"
        )


_NEEDED = (
    *("map", "map1", "map2", "flat_map", "flat_map1", "flat_map2", "filter", "reduce"),
    *("process_element", "process_element1", "process_element2", "process_broadcast_element"),
)


def _check_written(what: str, given: object, rich: type[Function]) -> None:
    """Refuses an object that lacks a method of its base class that only the author can write."""
    if not isinstance(given, rich) or type(given) is rich:
        return
    for name in _NEEDED:
        base = getattr(rich, name, None)
        if base is not None and getattr(type(given), name) is base:
            arguments = ", ".join(inspect.signature(base).parameters)
            raise JobError(f"{what}: {type(given).__name__} has no {name}: write def {name}({arguments})")


def _check_arguments(what: str, given: object, name: str, first: str) -> None:
    """Refuses a method that can't be called as Weir calls it: with a value or a time, and a context."""
    method = getattr(given, name, None)
    if method is None:
        return
    try:
        inspect.signature(method).bind(None, None)
    except TypeError:
        raise JobError(
            f"{what}: {type(given).__name__}.{name}{_defined(method)} must take two arguments: "
            f"def {name}(self, {first}, context)"
        ) from None


def _named(given: object, method: str) -> str:
    return f"{type(given).__name__}.{method}" if isinstance(given, Function | Trigger | Evictor) else shown(given)


def _defined(method: object) -> str:
    line = defined_at(method)
    return f" ({short_line(line)})" if line else ""
