"""Goal: whatever an author may call says what it does, in an editor and in `help()`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

import engine.api
import engine.connectors.dataframe
import engine.connectors.elements
import engine.connectors.files
import engine.connectors.generator
import engine.connectors.printing
import engine.connectors.table
import engine.testing

FOR_AUTHORS = [
    engine.api,
    engine.connectors.dataframe,
    engine.connectors.elements,
    engine.connectors.files,
    engine.connectors.generator,
    engine.connectors.printing,
    engine.connectors.table,
    engine.testing,
]


def undocumented(module: ModuleType) -> Iterator[str]:
    """Yields the public names of a module, and the public methods of its classes, that have no docstring."""
    for name in getattr(module, "__all__", vars(module)):
        given = getattr(module, name)
        ours = getattr(given, "__module__", "").startswith("engine." if hasattr(module, "__all__") else module.__name__)
        if name.startswith("_") or not ours or not (inspect.isclass(given) or inspect.isfunction(given)):
            continue
        if not given.__doc__ or (inspect.isclass(given) and not vars(given).get("__doc__")):
            yield f"{module.__name__}.{name}"
        for method, value in vars(given).items() if inspect.isclass(given) else ():
            callable_ = isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)
            if callable_ and not method.startswith("_") and not inspect.getdoc(getattr(given, method)):
                yield f"{module.__name__}.{name}.{method}"


@pytest.mark.parametrize("module", FOR_AUTHORS, ids=lambda module: module.__name__)
def test_every_public_name_has_a_docstring(module: ModuleType) -> None:
    assert list(undocumented(module)) == []


def test_a_name_without_a_docstring_is_found() -> None:
    module = ModuleType("engine.fake")

    class Silent:
        def said(self) -> None:
            """Has one."""

        def unsaid(self) -> None: ...

    Silent.__module__ = "engine.fake"
    module.Silent = Silent  # type: ignore[attr-defined]
    assert list(undocumented(module)) == ["engine.fake.Silent", "engine.fake.Silent.unsaid"]
