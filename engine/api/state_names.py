"""Finds a state name that a function uses for two different states, from the source of its class.

State is asked for in `open`, which runs only in a slot. What is written there as a literal can be seen before:
`context.get_state(ValueStateDescriptor("seen", "long"))`. Everything else is found when the function is opened.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from engine.core.ddl import parse_type
from engine.core.errors import JobError

_CALLS = {
    "get_state": "a value",
    "get_list_state": "a list",
    "get_map_state": "a map",
    "get_reducing_state": "a reduced value",
    "get_aggregating_state": "an aggregate",
}


def check_state_names(what: str, function: object) -> None:
    """Raises a `JobError` if the class asks for two different states under one name."""
    known: dict[str, tuple[str, int]] = {}
    for name, state, line in _asked(type(function)):
        before, first = known.setdefault(name, (state, line))
        if before != state:
            raise JobError(
                f"{what}: {type(function).__name__} asks for the state {name!r} twice, as {before} (line {first}) and "
                f"as {state} (line {line}): give each state its own name"
            )


def _asked(kind: type) -> Iterator[tuple[str, str, int]]:
    """Returns the name, the kind and types, and the line of each state that is asked for with a literal."""
    try:
        lines, first = inspect.getsourcelines(kind)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return  # a class without a file, as in a notebook
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CALLS):
            continue
        made = node.args[0] if len(node.args) == 1 else None
        if isinstance(node.func.value, ast.Name) and isinstance(made, ast.Call) and made.args:
            name, *types = made.args
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                told = [text for text in map(_type, types) if text]
                yield name.value, " of ".join([_CALLS[node.func.attr], *told]), first + node.lineno - 1


def _type(node: ast.expr) -> str:
    """Returns the type that an argument says, as Arrow calls it; nothing if it is no literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return str(parse_type(node.value, ""))
        except JobError:
            return ""  # the descriptor itself will say so
    return ""
