"""Reads the examples of a page under docs/: runs its Python code, and checks that its `weir` commands exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from engine.cli.main import add_commands, app

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_WEIR = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?weir ")


def blocks(page: Path) -> Iterator[tuple[str, int, str]]:
    """Yields the fenced examples of a page: their language, the number of their first line, and their text."""
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        yield found[2], text.count("\n", 0, found.start(3)) + 1, found[3]


def run_page(page: Path, known: dict[str, Any]) -> int:
    """Runs the Python examples of a page in their order, in one namespace. Returns how many there are.

    A traceback names the page and the line in it.
    """
    examples = [(line, text) for language, line, text in blocks(page) if language == "python"]
    for line, text in examples:
        exec(compile("\n" * (line - 1) + text, str(page), "exec"), known)
    return len(examples)


def commands(page: Path) -> list[list[str]]:
    """Returns the words behind `weir` of every command in the page's examples that are not Python."""
    lines = [line.strip() for language, _, text in blocks(page) if language != "python" for line in text.splitlines()]
    return [shlex.split(_WEIR.sub("", line), comments=True) for line in lines if _WEIR.match(line)]


def check_commands(found: list[list[str]]) -> None:
    """Raises if `weir` has no such command, or if a command has no such option."""
    known = typer.Typer()
    known.registered_commands = list(app.registered_commands)
    add_commands(known)
    group: Any = typer.main.get_command(known)
    for words in found:
        with group.make_context("weir", list(words)) as context:
            name, command, rest = group.resolve_command(context, list(words))
            assert command is not None, f"there is no `weir {' '.join(words)}`"
            command.make_context(name, rest, parent=context).close()
