"""A machine without Java, as far as environment variables can say it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """An environment like that of a machine without Java: every command of PATH but java."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for folder in map(Path, os.environ["PATH"].split(os.pathsep)):
        for command in folder.iterdir() if folder.is_dir() else ():
            link = commands / command.name
            if not command.name.startswith("java") and not link.is_symlink():
                link.symlink_to(command)
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return {**kept, "PATH": str(commands), "XDG_CACHE_HOME": str(tmp_path / "cache")}
