"""Checks that a job can be sent to its slots, before anything starts. A script's functions travel pickled."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import FunctionType
from typing import Any

from engine.core.authors import defined_at, short_line
from engine.core.errors import JobError
from engine.graph.job_graph import JobGraph

_DEPTH = 8


def check_sendable(graph: JobGraph) -> None:
    """Raises a `JobError` that names operator, function and variable if a part of the job can't be pickled."""
    for vertex in graph.vertices:
        if vertex.source is not None:
            _check(f"source {vertex.source.uid!r}", vertex.source.source)
        for operator in vertex.operators:
            _check(f"{operator.kind} {operator.uid!r}", operator.sink or operator.build)


def _check(operator: str, part: Any) -> None:
    error = _error(part)
    if error is None:
        return
    held, path = _culprit(part)
    owners = [one for one in path if isinstance(one, FunctionType) and not one.__module__.startswith("engine.")]
    function = f"its function {owners[-1].__name__} ({short_line(defined_at(owners[-1]))})" if owners else "it"
    name = next((one for one in reversed(path) if isinstance(one, str)), "")
    what = f"{name!r}, a {type(held).__name__}" if name else f"a {type(held).__name__}"
    raise JobError(
        f"{operator} can't be sent to the slots: {function} uses {what}, which can't be pickled ({error}); create it "
        "in open() of a class such as MapFunction, in each slot"
    )


def _culprit(part: Any) -> tuple[Any, list[Any]]:
    """Returns the innermost value that can't be pickled, and the functions and names on the way to it."""
    path: list[Any] = [part]
    for _ in range(_DEPTH):
        found = next(((name, value) for name, value in _parts(part) if _error(value) is not None), None)
        if found is None:
            break
        name, part = found
        path += [name, part]
    return part, path


def _parts(whole: Any) -> Iterator[tuple[str, Any]]:
    """Yields what a value holds, by name: variables of a function, attributes of an object."""
    if isinstance(whole, partial):
        yield from (("argument", value) for value in (whole.func, *whole.args, *whole.keywords.values()))
    elif isinstance(whole, FunctionType):
        for name, cell in zip(whole.__code__.co_freevars, whole.__closure__ or (), strict=True):
            yield name, cell.cell_contents
        if whole.__module__ == "__main__":
            known = whole.__globals__
            yield from ((name, known[name]) for name in whole.__code__.co_names if name in known)
    elif hasattr(whole, "__dict__") and not isinstance(whole, type):
        yield from vars(whole).items()


def _error(value: Any) -> str | None:
    """Returns why a value can't be pickled as Spark does it; None: it can."""
    from pyspark import cloudpickle

    try:
        cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:
        return str(error)
    return None
