"""The hash of a job's code, by which a slot that would run other code is refused.

It covers the files of the job's own package, and the modules of the same top-level package that the job imports,
directly or through others. What it imports from elsewhere (libraries, Weir itself) is not part of it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

NOT_IN_SLOTS = ("asset.py", "definitions.py", "drill.py")
"""Files beside a job for Dagster and for drills. A change in them must not fail a running job."""


def code_hash(function: Callable[..., Any]) -> str:
    """Returns a hash of the code behind a job, as a slot would import it, from a folder or from an archive."""
    module = sys.modules[function.__module__]
    if not module.__package__:
        return hashlib.sha256(inspect.getsource(module).encode()).hexdigest()
    digest = hashlib.sha256()
    for name, source in sorted(_sources(module.__name__, module.__package__).items()):
        digest.update(name.encode())
        digest.update(source)
    return digest.hexdigest()


def _sources(module: str, package: str) -> dict[str, bytes]:
    """Returns the sources by module name; that of a package is named `<package>.__init__`."""
    top = package.partition(".")[0]
    files = [file for file in resources.files(package).iterdir() if file.name.endswith(".py")]
    sources = {
        f"{package}.{file.name.removesuffix('.py')}": file.read_bytes()
        for file in files
        if file.name not in NOT_IN_SLOTS
    }
    followed: set[str] = set()
    to_follow = [module]
    while to_follow:
        name = to_follow.pop()
        if name in followed or name.partition(".")[0] != top:
            continue
        followed.add(name)
        source = sources.get(name) or _source(name)
        if source is not None:
            sources[name] = source
            to_follow += [part for imported in _imported(name, source) for part in (imported, f"{imported}.__init__")]
    return sources


def _imported(module: str, source: bytes) -> Iterator[str]:
    """Yields what a module may import: also names that turn out not to be modules, and the packages around each."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a file that nothing can import
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), module.rpartition(".")[0])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _absolute(name: str, package: str) -> str:
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:  # above the top-level package: this import would fail
        return ""


def _source(module: str) -> bytes | None:
    """Returns the source of a module inside of a top-level package; None if there is no such file."""
    top, *inside = module.split(".")
    if not inside:
        return None
    file = resources.files(top).joinpath(*inside[:-1], f"{inside[-1]}.py")
    return file.read_bytes() if file.is_file() else None
