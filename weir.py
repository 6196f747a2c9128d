"""The command `weir`, and `python -m weir`.

Invariant: the package `engine` that it imports is Weir's, which lies beside this file. Another package of that name on
the search path is named before anything of it is imported.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path

_OWN = Path(__file__).resolve().parent / "engine" / "__init__.py"


def other_engine(folders: list[str]) -> str:
    """Returns the file of the package `engine` that Python finds first in these folders, if it is not Weir's."""
    found = PathFinder.find_spec("engine", folders)
    if found is None or found.origin is None or Path(found.origin).resolve() == _OWN:
        return ""
    return found.origin


def main() -> None:
    if other := other_engine(sys.path):
        sys.exit(
            f"error: {other} hides Weir's own package `engine`: rename that package, or take its folder out of "
            "PYTHONPATH and run weir in another folder"
        )
    try:
        from engine.cli.main import main as command  # this takes most of the time of a short command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
